"""The batch cap where a fix brought it to a version that does not know its variable."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pdguard._bundle import bundled
from pdguard.facts.derived import derive_engine
from pdguard.facts.environment import parse_environment
from pdguard.facts.exercised import add_exercised_facts
from pdguard.facts.fixes import add_fix_facts
from pdguard.facts.interface import Collected, Grade, Subject, Value
from pdguard.facts.versions import parse_version
from pdguard.fingerprint.model import Fix, FixFinding, State
from pdguard.node import names
from pdguard.policy.evaluate import evaluate
from pdguard.policy.loader import load_checks
from tests.facts.test_exercised import Ran

FIX = Fix("32758", "t", "s", (32758,), "prefill", (), ("mooncake",), first_release="0.5.20")
SET = {names.BATCH_CAP: "1024"}


def prefill(
    version: str,
    env: Mapping[str, str] | None,
    state: State = State.PRESENT,
    backend: str = "mooncake",
    *,
    over_http: bool = False,
) -> Subject:
    """An engine whose environment and source were read; 32758 is there by pdguard's hand where it is."""
    subject = Subject("engine", "p0")
    facts = subject.facts
    given: Mapping[str, Value] = {"role": "prefill", "backend": backend, "admission_limit": 681_274}
    for name, value in given.items():
        facts.add(name, value, Grade.CONFIGURED, "http", name)
    facts.add("version", version, Grade.CLAIMED, "http", "version")
    reading = parse_environment(env, parse_version(version), registered_only=over_http)
    reading.put(facts, "http" if over_http else "process", "/proc/7/environ")
    add_fix_facts(facts, [FixFinding(FIX, state, {"mooncake": state}, ())], {"32758"})
    derive_engine(facts)
    return subject


def verdict(engine: Subject) -> str:
    """What PDG409 says of it."""
    checks = [check for check in load_checks(bundled("checks")) if check.id == "PDG409"]
    (finding,) = evaluate(
        checks, Collected(Subject("cluster", "c"), [engine], policy={"extreme_context": 131_072})
    )
    return finding.status.value


@pytest.mark.parametrize(
    ("env", "cap", "said"),
    [
        (SET, 1024, "pass"),
        ({"SGL" + names.BATCH_CAP.removeprefix("SGLANG"): "64", **SET}, 64, "pass"),
        ({}, 0, "fail"),
        ({names.BATCH_CAP: "0"}, 0, "fail"),
        ({names.BATCH_CAP: "-1"}, -1, "fail"),
        ({names.BATCH_CAP: "many"}, 0, "fail"),
    ],
)
def test_a_hardened_engine_reads_the_variable(env: dict[str, str], cap: int, said: str) -> None:
    engine = prefill("0.5.19", env)
    assert (engine.facts.value("batch_cap"), verdict(engine)) == (cap, said)
    assert engine.facts.value("batch_cap_support") is True
    fact = engine.facts.get("batch_cap")
    assert fact is not None
    assert fact.grade is Grade.CONFIGURED


def test_a_stock_engine_of_that_version_does_not() -> None:
    engine = prefill("0.5.19", SET, State.ABSENT)
    assert engine.facts.value("batch_cap") == 0
    assert engine.facts.value("batch_cap_raw") == "1024"
    assert verdict(engine) == "fail"


@pytest.mark.parametrize("state", [State.UNKNOWN, State.PARTIAL])
def test_a_source_that_leaves_it_open_is_not_taken_for_capped(state: State) -> None:
    assert verdict(prefill("0.5.19", SET, state)) in ("fail", "unknown")


def test_what_an_engine_does_not_show_over_http_is_not_taken_for_unset() -> None:
    """0.5.19 lists the variables that it knows, so the list is silent on this one, set or not."""
    engine = prefill("0.5.19", {}, over_http=True)
    assert engine.facts.get("batch_cap") is None
    missing = engine.facts.why_missing("batch_cap")
    assert missing is not None
    assert "was not read" in missing.reason
    assert "node:" in missing.how
    assert verdict(engine) == "unknown"


def test_an_environment_that_was_not_read_stays_unknown() -> None:
    engine = prefill("0.5.19", None)
    assert engine.facts.get("batch_cap") is None
    assert verdict(engine) == "unknown"


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize(("env", "said"), [(SET, "pass"), ({}, "fail")])
def test_releases_that_know_it_are_read_as_before(env: dict[str, str], said: str, over_http: bool) -> None:
    engine = prefill("0.5.20", env, over_http=over_http)
    assert engine.facts.value("batch_cap") == (1024 if env else 0)
    assert verdict(engine) == said


def test_what_a_double_of_the_library_shows_grades_nothing_of_ascend() -> None:
    ran = [Ran(f"transfer.batch-cap.{path}", "capped") for path in ("mooncake", "slice", "dcp", "ascend")]
    ran.append(Ran("transfer.siblings.ascend", "fixed"))
    ascend, mooncake = prefill("0.5.23", SET, backend="ascend"), prefill("0.5.23", SET)
    for engine in (ascend, mooncake):
        add_exercised_facts(engine.facts, ran)
    grades = [engine.facts.get("batch_cap_support") for engine in (ascend, mooncake)]
    assert [fact.grade for fact in grades if fact] == [Grade.FINGERPRINTED, Grade.EXERCISED]
    assert not [name for name, fact in ascend.facts.known() if fact.grade is Grade.EXERCISED]
