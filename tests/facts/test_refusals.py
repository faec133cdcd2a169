"""Whether a refusal at one door releases the other half: told by source and exercise, by no version."""

from __future__ import annotations

import pytest

from pdguard.exercise.catalogue import CONTRACTS, select
from pdguard.exercise.model import ContractResult
from pdguard.facts.exercised import add_exercised_facts, contracts_for
from pdguard.facts.fixes import add_fix_facts
from pdguard.facts.interface import Grade, Subject
from pdguard.facts.pairing import build_pairs
from pdguard.fingerprint.model import Fix, FixFinding, State
from tests.facts.build import engine

FIX = Fix("X6", "t", "s", (), "both", (), merged=False)


def finding(state: State, *backends: str) -> FixFinding:
    return FixFinding(FIX, state, dict.fromkeys(backends or ("mooncake", "nixl", "ascend"), state), ())


def read(state: State, backend: str = "mooncake") -> Subject:
    subject = Subject("engine", "d0")
    subject.facts.add("backend", backend, Grade.CONFIGURED, "http", "backend")
    add_fix_facts(subject.facts, [finding(state)])
    return subject


@pytest.mark.parametrize(
    ("backend", "state", "told"),
    [
        ("mooncake", State.PRESENT, True),
        ("nixl", State.PRESENT, True),
        ("ascend", State.PRESENT, True),
        ("mori", State.PRESENT, False),
        ("mooncake", State.ABSENT, False),
        ("mooncake", State.PARTIAL, None),
        ("nixl", State.UNKNOWN, None),
    ],
)
def test_the_source_tells_for_the_backends_that_it_is_about(
    backend: str, state: State, told: bool | None
) -> None:
    fact = read(state, backend).facts.get("refusal_told")
    assert (None if fact is None else fact.value) is told
    assert fact is None or fact.grade is Grade.FINGERPRINTED


@pytest.mark.parametrize("version", ["0.5.5", "0.5.19", "0.5.23"])
def test_no_release_has_it(version: str) -> None:
    fact = engine("decode", version).facts.get("refusal_told")
    assert fact is not None
    assert (fact.value, fact.grade) == (False, Grade.CLAIMED)


def test_a_version_that_nobody_examined_tells_nothing() -> None:
    assert engine("decode", "0.9.0").facts.get("refusal_told") is None


@pytest.mark.parametrize(
    ("p", "d", "releases"),
    [
        (True, True, True),
        (True, False, False),
        (False, True, False),
        (None, False, False),
        (True, None, None),
    ],
)
def test_both_doors_have_to_tell(p: bool | None, d: bool | None, releases: bool | None) -> None:
    halves = []
    for role, told in (("prefill", p), ("decode", d)):
        half = engine(role, "0.9.0")
        if told is not None:
            half.facts.add("refusal_told", told, Grade.FINGERPRINTED, "source", "X6")
        halves.append(half)
    (pair,) = build_pairs([halves[0]], [halves[1]], [])
    assert pair.facts.value("refusal_releases") is releases


@pytest.mark.parametrize(
    ("prefill", "decode", "told"),
    [("released", "released", True), ("released", "waits", False), ("poisoned", "released", False)],
)
def test_what_was_exercised_counts(prefill: str, decode: str, told: bool) -> None:
    subject = Subject("engine", "d0")
    subject.facts.add("backend", "nixl", Grade.CONFIGURED, "http", "backend")
    words = {"refusal.prefill.nixl": prefill, "refusal.decode.nixl": decode}
    results = [
        ContractResult(name, ("X6",), "nixl", "default", word, "pass" if word == "released" else "fail", "")
        for name, word in words.items()
    ]
    add_exercised_facts(subject.facts, results)
    fact = subject.facts.get("refusal_told")
    assert fact is not None
    assert (fact.value, fact.grade) == (told, Grade.EXERCISED)
    add_exercised_facts(other := Subject("engine", "d1").facts, results[:1])
    assert other.get("refusal_told") is None


def test_an_audit_runs_what_it_needs_for_that() -> None:
    for backend in ("mooncake", "nixl"):
        chosen = {contract.id for contract in select(contracts_for(backend))}
        assert {f"refusal.prefill.{backend}", f"refusal.decode.{backend}"} <= chosen
    assert not any(c.id.startswith("refusal") for c in select(contracts_for("mori")))
    assert len([c for c in CONTRACTS if c.id.startswith("refusal.")]) == 6
