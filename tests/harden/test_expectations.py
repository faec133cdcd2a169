from __future__ import annotations

import pytest

from pdguard._bundle import bundled
from pdguard.exercise.catalogue import CONTRACTS
from pdguard.exercise.model import ContractResult, Engine, ExerciseReport, State
from pdguard.harden.expectations import expected, judge
from pdguard.harden.loader import load_backports
from pdguard.harden.model import Backport

BACKPORTS = load_backports(bundled("remediations"))


@pytest.mark.parametrize("backport", BACKPORTS, ids=lambda b: f"{b.fix}-{b.base}")
def test_what_a_backport_proves_is_about_it(backport: Backport) -> None:
    for name in backport.proves:
        assert expected([Backport(backport.fix, backport.base, (), proves=(name,))]), name
    together = {
        "41404",
        "37454",
        "X4",
        "41618",
        "41402",
        "40645",
        "43719",
        "37077",
        "X3",
        "35049",
        "35360",
        "27372",
    }
    for contract in expected([backport]):
        assert backport.fix in contract.fixes or set(contract.fixes) & together


def test_every_base_is_proven_at_both_doors_and_in_the_whole_handshake() -> None:
    cells = ("quiescent", "in-flight", "cleared-before-drain", "cleared-before-abort", "failed-send")
    for base in ("0.5.19", "0.5.20"):
        ids = {c.id for c in expected(b for b in BACKPORTS if b.base == base)}
        assert {"door.prefill.rejected", "door.decode.rebootstrap", "hold.fast-ack.nixl"} <= ids
        assert {f"handshake.mooncake.on.{cell}" for cell in (*cells, "two-decode-ranks")} <= ids
        assert {f"handshake.nixl.on.{cell}" for cell in cells[:4]} <= ids
        assert {f"handshake.mori.on.{cell}" for cell in (*cells, "two-decode-ranks")} <= ids
        assert not any(".default." in one for one in ids)
    ids = {c.id for c in expected(b for b in BACKPORTS if b.base == "0.5.21")}
    assert {f"handshake.{b}.on.failed-send" for b in ("mooncake", "nixl", "mori")} <= ids


def test_nothing_is_expected_of_nothing() -> None:
    assert expected(()) == ()


def result(name: str, state: State, why: str = "") -> ContractResult:
    return ContractResult(name, ("38935",), "any", "any", "vulnerable", state, why)


def test_only_what_was_expected_counts_and_the_first_that_broke_is_told() -> None:
    contracts = [c for c in CONTRACTS if c.id.startswith("door.prefill")]
    ids = [c.id for c in contracts]
    states: tuple[State, ...] = ("pass", "fail", "not-run")
    results = [result(name, state, "because") for name, state in zip(ids[:3], states, strict=True)]
    judged = judge(ExerciseReport(Engine("python"), (*results, result("hold.other", "fail"))), contracts)
    assert [r.id for r in judged.passed] == ids[:1]
    assert [r.id for r in judged.broken] == ids[1:2]
    assert "1 of 2 contracts hold" in judged.text()
    assert f"{ids[1]} gives vulnerable (because)" in judged.text()
    assert "1 could not be run" in judged.text()
