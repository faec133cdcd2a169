"""What follows from fix states is what follows from the version on every release, and wins over it."""

from __future__ import annotations

import functools
import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pdguard._bundle import bundled
from pdguard.facts.derived import derive_engine
from pdguard.facts.fixes import add_fix_facts, weakest
from pdguard.facts.interface import Grade, Subject, Value
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import FixFinding, State
from tests.facts.build import DEFAULTS
from tests.wheels import wheel

RELEASES = ("0.5.5", "0.5.10", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
TWINS = (
    *("reject_fate", "hold_support", "hold_scope", "ack_format", "ack_kept", "ack_every_rank", "early_ack"),
    *("prefill_told", "batch_cap_support", "fake_receiver_fault", "offload_slot_fault"),
    *("offload_retract_fault", "restore_fault", "rank_local_hold", "hold", "refusal_told"),
)

pytestmark = pytest.mark.wheels


@functools.cache
def findings(version: str) -> tuple[FixFinding, ...]:
    matcher = Matcher(load_fixes(bundled("remediations")))
    with zipfile.ZipFile(wheel(version)) as archive:
        names = set(archive.namelist())

        def read(path: str) -> tuple[str, str] | None:
            if f"sglang/{path}" not in names:
                return None
            data = archive.read(f"sglang/{path}")
            return hashlib.sha256(data).hexdigest(), data.decode("utf-8")

        return tuple(matcher.find(read))


def engine(stated: str, source: str | None, backend: str, **more: Value) -> Subject:
    subject = Subject("engine", "d0")
    facts: Mapping[str, Value] = {**DEFAULTS, "role": "decode", "backend": backend, "tp_size": 2, **more}
    subject.facts.add("version", stated, Grade.CLAIMED, "http", "version")
    for name, value in facts.items():
        subject.facts.add(name, value, Grade.CONFIGURED, "http", name)
    if source is not None:
        add_fix_facts(subject.facts, findings(source))
    derive_engine(subject.facts)
    return subject


@pytest.mark.parametrize("backend", ["mooncake", "nixl", "mori", "ascend"])
@pytest.mark.parametrize("version", RELEASES)
def test_source_and_version_agree_on_stock_releases(version: str, backend: str) -> None:
    on: dict[str, Value] = {"hold_setting": True, "t_hold_kind": "finite"}
    by_source, by_version = engine("9.9.9", version, backend, **on), engine(version, None, backend, **on)
    for name in TWINS:
        told, expected = by_source.facts.get(name), by_version.facts.get(name)
        if told is None or expected is None:
            continue
        assert told.value == expected.value, name
        assert told.grade is Grade.FINGERPRINTED or name == "hold", name
    assert by_source.facts.get("reject_fate") is not None


@pytest.mark.parametrize(("stated", "source"), [("0.5.19", "0.5.22"), ("0.5.23", "0.5.20")])
def test_the_source_wins_and_the_disagreement_is_a_fact(stated: str, source: str) -> None:
    facts = engine(stated, source, "mooncake").facts
    same = engine(source, source, "mooncake").facts
    assert facts.value("reject_fate") == same.value("reject_fate")
    assert facts.value("hold_scope") == same.value("hold_scope")
    against = facts.items("source_disagrees")
    assert against
    word = "present" if stated < source else "absent"
    assert f"38935 {word}" in against
    assert same.items("source_disagrees") == ()


@pytest.mark.parametrize("version", RELEASES)
def test_a_development_build_is_judged_by_what_it_holds(version: str) -> None:
    facts = engine("0.5.20.dev7+g1234567", version, "mooncake").facts
    assert facts.value("reject_fate") == engine(version, None, "mooncake").facts.value("reject_fate")
    fate = facts.get("reject_fate")
    assert fate is not None
    assert fate.grade is Grade.FINGERPRINTED
    assert any(e.ref.startswith("38935 srt/") for e in fate.evidence)


def test_a_default_is_the_source_s_own() -> None:
    """A 0.5.20 tree that says it is 0.5.22 has its hold off where nothing is set."""
    unset: dict[str, Value] = {"hold_raw": "unset", "env_not_understood": (), "hold_setting": True}
    facts = engine("0.5.22", "0.5.20", "mooncake", t_hold_kind="finite", **unset).facts
    assert facts.value("hold_setting") is False
    assert facts.value("hold") == "off"


@pytest.mark.parametrize(
    ("fix", "state", "fact", "value"),
    [
        ("38935", State.PARTIAL, "reject_fate", None),
        ("38935", State.UNKNOWN, "reject_fate", None),
        ("41404", State.UNKNOWN, "hold_scope", None),
        ("35049", State.UNKNOWN, "hold_support", None),
        ("35049", State.UNKNOWN, "hold", None),
        ("43719", State.PARTIAL, "early_ack", True),
        ("43719", State.UNKNOWN, "early_ack", None),
        ("40645", State.UNKNOWN, "ack_kept", None),
        ("X1", State.UNKNOWN, "rank_local_hold", None),
    ],
)
def test_what_the_source_does_not_settle_the_version_may_not(
    fix: str, state: State, fact: str, value: Value | None
) -> None:
    """A 0.5.23 tree with one fix gutted: its version must not lend it a pass."""
    subject = Subject("engine", "d0")
    subject.facts.add("version", "0.5.23", Grade.CLAIMED, "http", "version")
    given: Mapping[str, Value] = {**DEFAULTS, "role": "decode", "tp_size": 2, "hold_setting": True}
    for name, one in {**given, "t_hold_kind": "finite"}.items():
        subject.facts.add(name, one, Grade.CONFIGURED, "http", name)
    broken = [
        replace(f, state=state, backends=dict.fromkeys(f.backends, state)) if f.fix.id == fix else f
        for f in findings("0.5.23")
    ]
    add_fix_facts(subject.facts, broken)
    derive_engine(subject.facts)
    assert subject.facts.value(fact) == value
    if value is None:
        why = subject.facts.why_missing(fact)
        assert why is not None
        assert fix in why.reason


def test_a_leader_holds_no_more_than_its_weakest_follower() -> None:
    states = {f.fix.id: f.state for f in weakest([findings("0.5.23"), findings("0.5.20")])}
    alone = {f.fix.id: f.state for f in findings("0.5.20")}
    assert states == alone
