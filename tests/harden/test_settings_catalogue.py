from __future__ import annotations

import re
from pathlib import Path

import pytest

from pdguard._bundle import bundled
from pdguard.errors import InputError
from pdguard.facts import _env_tables as tables
from pdguard.facts import history
from pdguard.facts.interface import Collected, Grade, Subject
from pdguard.harden.settings import Setting, load_settings, plan_settings
from pdguard.policy.loader import load_checks

FOLDER = bundled("remediations") / "settings"
SETTINGS = {s.id: s for s in load_settings(FOLDER)}
CHECKS = {c.id: c for c in load_checks(bundled("checks"))}


def tokens(check_id: str) -> set[str]:
    return {s.removeprefix("setting:") for s in CHECKS[check_id].fix if s.startswith("setting:")}


def test_every_token_of_a_check_is_a_setting_and_every_setting_is_asked_for() -> None:
    asked = {token for check in CHECKS for token in tokens(check)}
    assert asked == set(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.id)
def test_a_setting_says_of_every_check_that_names_it_whether_it_closes_it(setting: Setting) -> None:
    said = {c.check for c in setting.closes} | set(setting.eases)
    assert said <= set(CHECKS)
    assert {check for check in CHECKS if setting.id in tokens(check)} <= said
    assert not {c.check for c in setting.closes} & set(setting.eases)


def cases() -> list[tuple[str, int]]:
    return [(s.id, n) for s in SETTINGS.values() for n in range(len(s.examples))]


@pytest.mark.parametrize(("name", "number"), cases())
def test_examples(name: str, number: int) -> None:
    setting, example = SETTINGS[name], SETTINGS[name].examples[number]
    collected = Collected(Subject("cluster", "c"))
    for engine, facts in example.engines.items():
        subject = Subject("engine", engine)
        for fact, value in facts.items():
            subject.facts.add(fact, value, Grade.CONFIGURED, "http", fact)
        collected.engines.append(subject)
    plan = plan_settings(collected, [setting])
    found = {p.engine: p.new + ("" if p.sure else "?") for p in plan.proposals}
    found |= {s.engine: "skip" for s in plan.skipped}
    asked = [e for e, facts in example.engines.items() if facts["role"] in setting.roles]
    assert {e: found.get(e, "keep") for e in asked} == dict(example.gives)


def test_releases_are_those_of_the_tables() -> None:
    first = {s.id: tuple(int(p) for p in s.since.split(".")) for s in SETTINGS.values() if s.since}
    assert first["hold"] == min(r for r, has in history.HOLD_CODE.items() if has)
    assert first["batch-cap"] == min(r for r, has in history.BATCH_CAP.items() if has)
    assert first["checksum"] == min(r for r, has in history.CHECKSUM_FLAG.items() if has)
    for setting in SETTINGS.values():
        if setting.variable:
            assert first[setting.id] == tables.ALL[setting.variable].since


GOOD = (FOLDER / "metrics.yaml").read_text("utf-8")


def broken(tmp_path: Path, old: str, new: str) -> list[str]:
    assert old in GOOD
    (tmp_path / "metrics.yaml").write_text(GOOD.replace(old, new, 1), "utf-8")
    with pytest.raises(InputError) as caught:
        load_settings(tmp_path)
    return [str(p).removeprefix(str(tmp_path)) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("flag: --enable-metrics", "flag: --enable-metricks", r"no option that is read"),
        ("flag: --enable-metrics", "variable: HOME", r"HOME is no variable"),
        ("fact: metrics_on", "fact: metricks_on", r"no fact engine.metricks_on"),
        ("good_if: engine.metrics_on", "good_if: engine.metrics_on &&", r"does not compile"),
        ("good_if: engine.metrics_on", "good_if: engine.none", r"no fact engine.none"),
        ("good_if: engine.metrics_on", "good_if: pair.checksum == 'off'", r"pair cannot be used here"),
        ("good_if: engine.metrics_on\n", "", r"a literal has good_if"),
        ('{literal: "on"}', "{computed: luck}", r"no such computation"),
        ('{literal: "on"}', "{}", r"a literal or computed"),
        ("roles: [prefill, decode]", "roles: [router]", r"'prefill' or 'decode'"),
        ("id: metrics", "id: metric", r"bears its id"),
        ("title: Metrics", "subtitle: Metrics", r"title"),
        ('gives: {p0: "on?"}', 'gives: {p9: "on?"}', r"no such engine"),
        ("p0: {role: prefill, metrics_on", "p0: {role: prefill, metrix_on", r"no fact engine.metrix_on"),
        ("order: Any", "follows: nothing\norder: Any", r"follows nothing"),
        ("title: Metrics", "title: [Metrics", r"."),
    ],
)
def test_faults_are_told_with_their_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    problems = broken(tmp_path, old, new)
    assert any(re.search(said, p) for p in problems)
    assert all(re.match(r"/metrics\.yaml:[1-9]\d*:[1-9]\d*: ", p) for p in problems)


def test_the_place_is_that_of_the_value(tmp_path: Path) -> None:
    assert broken(tmp_path, "fact: metrics_on", "fact: nothing")[0].startswith("/metrics.yaml:7:7: ")


def test_an_empty_folder_and_a_file_that_is_not_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no setting in it"):
        load_settings(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"x\.yaml"):
        load_settings(tmp_path)
