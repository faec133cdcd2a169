"""Hardened engines at work: what stock ones do wrong they do right, and everything else as before.

`PDGUARD_LAB_RACE_RUNS=8` runs every race that often, and also what is left out otherwise: the race on 0.5.19
and over NIXL, the same answers and unequal pools on 0.5.20, and the audit of 0.5.19.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import traffic
from .client import Answer, prompt
from .gauges import nothing_is_left
from .hardened import WAIT, Engines, stock, with_hold
from .lab import Lab
from .probing import BOTH, DOOR, EXPOSED, INDEPENDENT, PREFILL_ONLY, probe
from .race import Race, Run, race_spec
from .refusing import AT_DOOR, LIMIT_MESSAGE, OVER_LIMIT, has_tokens
from .session import LabSession
from .spec import Backend
from .test_audit_live import audit

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

UNEQUAL, EQUAL = (1024, 4096), (1024, 1024)
LONGEST = 1000
ANSWERED, GIVEN_UP = 220, 44
PROOFS = 5
BY_SOURCE = ("PDG206", "PDG207", "PDG410", "PDG412", "PDG415")
"""Doors, the fake receiver, the acknowledgement of a failed send, and what the hold covers."""
BY_SETTING = ("PDG401", "PDG402", "PDG403", "PDG411", "PDG413", "PDG414", "PDG417")
"""The hold in force on both sides, and what a pair's acknowledgements come to."""
RUNS_ENV = "PDGUARD_LAB_RACE_RUNS"
RUNS = int(os.environ.get(RUNS_ENV, "3"))
FULL = RUNS >= 8
FEWER = max(2, RUNS // 3)
STOCK_TRIES = max(RUNS, 8)
only_in_full = pytest.mark.skipif(not FULL, reason=f"only with {RUNS_ENV}=8 or more")
newest_first = pytest.mark.parametrize(
    "version", [pytest.param("0.5.19", marks=only_in_full), "0.5.20"], indirect=True, scope="session"
)

oldest_first = pytest.mark.parametrize(
    "version", ["0.5.19", pytest.param("0.5.20", marks=only_in_full)], indirect=True, scope="session"
)


@pytest.fixture(scope="session", params=["0.5.19", "0.5.20"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def refused(answer: Answer) -> bool:
    return answer.status == 400 and LIMIT_MESSAGE in answer.body and answer.seconds < 1


# --- prompts over the limit


@pytest.mark.parametrize("version", ["0.5.19"], indirect=True, scope="session")
def test_stock_answers_from_pages_of_others(version: str, lab_session: LabSession, tmp_path: Path) -> None:
    lab = lab_session.get(stock(version, UNEQUAL))
    answers = []
    for seed in (0, 99, 17):
        for step in range(4):
            assert lab.direct(prompt(LONGEST, seed + step), 2).decode.ok
        answers.append(lab.direct(OVER_LIMIT, 12).decode)
    assert [(a.status, a.prompt_tokens) for a in answers] == [(200, len(OVER_LIMIT))] * 3
    # The same greedy request: what it is answered depends on what was in the pool before.
    assert len({tuple(a.tokens) for a in answers}) > 1
    probes_say_so(lab, tmp_path)


def probes_say_so(lab: Lab, folder: Path) -> None:
    """With consent it sees the exposure, and by hash that answers depend on others; without, neither."""
    held_back = probe(lab, folder, "--over-pool", "--direct", "--stream", "no", "--wait", "10")
    assert held_back.code == 12  # at lengths that both reject, the refusal came late
    assert not held_back.document["exposed"]
    assert "--accept-exposure" in {one["todo"] for one in held_back.document["plan"]["left_out"]}
    for options in (("--direct",), ()):
        more = ("--stream", "no", "--wait", "10", "--accept-exposure")
        found = probe(lab, folder, "--over-pool", *options, *more)
        assert found.over_pool(PREFILL_ONLY, routed=not options)["all"] == EXPOSED
        assert (found.code, found.document["exposed"]) == (20, True)
    # Which pages the prompt gets is the engine's choice: one proof may meet the same ones twice.
    for _ in range(PROOFS):
        proof = probe(lab, folder, "--staging", "--direct", "--pair", "p0/d0", "--accept-exposure")
        assert [r["verdict"] for r in proof.of_kind("staging")] == [EXPOSED]
        (figures,) = proof.measures("staging")
        assert figures["control steady"] is True
        if figures["answer 1: hash"] != figures["answer 2: hash"]:
            return
    raise AssertionError(f"{PROOFS} proofs, and no answer that changed")


@oldest_first
def test_hardened_answers_are_the_same(version: str, lab_session: LabSession, hardened: Engines) -> None:
    """What a stock pair answers undisturbed, a hardened one answers among clients that leave and abort.

    Among such clients a stock pair is no yardstick: now and then it answers from pages that were given away.
    """
    asks = traffic.mix(ANSWERED, LONGEST, given_up=GIVEN_UP)
    lab = lab_session.get(stock(version, UNEQUAL))
    right = traffic.send(lab, [ask for ask in asks if ask.ending == "answered"], clients=1)
    if FULL:
        disturbed = traffic.send(lab, asks)
        wrong = sum(disturbed[number] != right[number] for number in right)
        lab_session.say(f"stock {version}, among clients that leave: {wrong} of {ANSWERED} answers wrong")
    lab = lab_session.get(with_hold(stock(version, UNEQUAL), hardened(version)))
    found = traffic.send(lab, asks)
    assert len(found) == ANSWERED
    assert {reply.status for reply in found.values()} == {200}
    assert {reply.finish for reply in found.values()} <= {"length", "stop"}
    assert [number for number in found if found[number] != right[number]] == []
    nothing_is_left(lab)


@oldest_first
def test_hardened_never_answers_from_pages_of_others(
    version: str, lab_session: LabSession, hardened: Engines, tmp_path: Path
) -> None:
    """Only prefill refuses; decode, which would wait for it in vain, is ended at once."""
    lab = lab_session.get(with_hold(stock(version, UNEQUAL), hardened(version)))
    assert lab.direct(prompt(LONGEST, 99), 2).decode.ok
    for more in ({}, {"stream": True}):
        both = lab.direct(OVER_LIMIT, 12, timeout=WAIT * 3, **more)
        assert LIMIT_MESSAGE in both.prefill.body
        assert AT_DOOR["prefill"] in both.decode.body
        for answer in (both.prefill, both.decode):
            assert answer.seconds < 1
            assert answer.status == (200 if more else 400)
            assert not has_tokens(answer)
    routed = lab.routed(OVER_LIMIT, 12, timeout=WAIT * 3, stream=True)
    assert not has_tokens(routed)
    assert routed.seconds < 1
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--stream", "no", "--wait", "10")
    assert found.over_pool(PREFILL_ONLY) == {"all": DOOR, "prefill": DOOR, "decode": DOOR}
    assert found.over_pool(BOTH) == {"all": DOOR, "prefill": DOOR, "decode": DOOR}
    proof = probe(lab, tmp_path, "--staging", "--direct", "--pair", "p0/d0", "--wait", "10")
    assert [r["verdict"] for r in proof.of_kind("staging")] == [INDEPENDENT]
    nothing_is_left(lab)


def test_hardened_refuses_on_both_halves_at_once(
    version: str, lab_session: LabSession, hardened: Engines, tmp_path: Path
) -> None:
    lab = lab_session.get(with_hold(stock(version, EQUAL), hardened(version)))
    for seed in (0, 99):
        assert lab.direct(prompt(LONGEST, seed), 2).decode.ok
        both = lab.direct(OVER_LIMIT, 12)
        assert refused(both.prefill), both.prefill
        assert refused(both.decode), both.decode
        routed = lab.routed(OVER_LIMIT, 12)
        assert refused(routed), routed
    streamed = lab.direct(OVER_LIMIT, 12, stream=True)
    for answer in (streamed.prefill, streamed.decode):
        assert answer.seconds < 1
        assert LIMIT_MESSAGE in answer.body
        assert not has_tokens(answer)
    found = probe(lab, tmp_path, "--over-pool", "--direct", "--canary", "--max-requests", "300")
    for stream in (False, True):
        assert found.over_pool(BOTH, stream=stream) == {"all": DOOR, "prefill": DOOR, "decode": DOOR}
        assert found.over_pool(BOTH, routed=True, stream=stream)["all"] == DOOR
    assert {r["verdict"] for r in found.of_kind("canary")} == {"the same answers"}
    assert found.code == 0
    nothing_is_left(lab)


# --- the audit of what runs


@newest_first
def test_the_audit_sees_the_fixes(
    version: str, lab_session: LabSession, hardened: Engines, tmp_path: Path
) -> None:
    lab = lab_session.get(with_hold(stock(version, EQUAL), hardened(version)))
    for options, grade in (((), "fingerprinted"), (("--exercise",), "exercised")):
        report, _ = audit(lab, tmp_path, *options)
        found = [f for f in report["findings"] if f["check"] in {*BY_SOURCE, *BY_SETTING}]
        assert {f["check"] for f in found} == {*BY_SOURCE, *BY_SETTING}
        assert [f for f in found if f["status"] != "pass"] == []
        assert {(f["check"], f["grade"]) for f in found if f["check"] in BY_SOURCE} == {
            (check, grade) for check in BY_SOURCE
        }
        for row in report["engines"]:
            assert row["reject_fate"] == "is retired at the door"
            assert row["hold_scope"] == "every failure"
            assert row["ack_kept"] is row["ack_every_rank"] is True


# --- the race for pages


def stock_is_wrong(lab_session: LabSession, version: str, backend: Backend, runs: int) -> None:
    """At least one wrong answer; most of them in the full proof, which does not stop at the first."""
    race = Race(lab_session.get(race_spec(version, hold=False, backend=backend)))
    seen: list[Run] = []
    while len(seen) < runs and (FULL or all(run.right for run in seen)):
        seen.append(race.run())
        lab_session.say(f"race, stock {version} {backend}: {seen[-1]}")
    assert {run.status for run in seen} == {200}
    wrong = sum(not run.right for run in seen)
    assert wrong >= (len(seen) // 2 + 1 if FULL else 1), list(map(str, seen))


def hardened_is_right(lab_session: LabSession, version: str, backend: Backend, root: Path, runs: int) -> None:
    """Right in every run, and what was held was released because its writes had ended."""
    lab = lab_session.get(race_spec(version, hold=True, backend=backend, engine_root=root))
    race = Race(lab)
    seen: list[Run] = []
    for _ in range(runs):
        seen.append(race.run())
        lab_session.say(f"race, hardened {version} {backend}: {seen[-1]}")
    assert [run for run in seen if not run.right] == []
    assert {tuple(run.held.items()) for run in seen} == {(("drained", 1),)}
    assert race.still_right()
    nothing_is_left(lab)


@newest_first
def test_stock_lets_late_writes_into_new_pages(version: str, lab_session: LabSession) -> None:
    stock_is_wrong(lab_session, version, "mooncake", STOCK_TRIES)


@newest_first
def test_hardened_holds_pages_until_writes_end(
    version: str, lab_session: LabSession, hardened: Engines
) -> None:
    hardened_is_right(lab_session, version, "mooncake", hardened(version), RUNS)


@only_in_full
def test_stock_with_nixl(version: str, lab_session: LabSession) -> None:
    stock_is_wrong(lab_session, version, "nixl", FEWER)


@only_in_full
def test_hardened_with_nixl(version: str, lab_session: LabSession, hardened: Engines) -> None:
    hardened_is_right(lab_session, version, "nixl", hardened(version), FEWER)
