"""Several ranks of decode, each a process with the engine's own queue, agreeing over real gloo on loopback.

The driver turns all schedulers step by step, so "in the same round" means what it says, and a rank that does
not come back from its turn waits for ranks that never enter what it has entered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pdguard.exercise.engine import crew, situations, stand
from pdguard.exercise.engine.crew import Crew, Judged

PATIENCE = 10.0
"""The group's own time limit for a collective, which the engine's polls have as well."""
SHORT = 3.0
"""The same where a rank stands still."""
_QUIET_ROUNDS = 5
_SLACK = 5.0
_FIRST, _SECOND = 51, 52

Verdict = dict[str, Any]


def together(case: str, backend: str) -> Verdict:
    """Bring about one of `CASES`, and see whether the ranks hold and release as one."""
    stand.switch("on", situations.HOLD_SECONDS)
    try:
        with Crew(backend, SHORT if case == "one-stands-still" else PATIENCE) as ranks:
            why = CASES[case](ranks)
    except Judged as judged:
        return judged.verdict
    return {"outcome": "fixed", "state": "pass", "why": why}


def _nothing_to_hold_on_one(ranks: Crew) -> str:
    """A rank that never met prefill has told nobody, and waits for nobody; the others may be written to."""
    ranks.each("open", _FIRST, how={1: "unmet"})
    _abort(ranks, _FIRST)
    _settled(ranks, 0, _FIRST)
    _all_hold(ranks, _FIRST)
    _settled(ranks, 2, _FIRST)
    _released(ranks, _FIRST, "drained")
    _idle(ranks)
    return "the rank without a transfer of its own holds and releases with the others"


def _acknowledged_on_one(ranks: Crew) -> str:
    """Prefill confirms to one rank after the other."""
    ranks.each("open", _FIRST)
    _abort(ranks, _FIRST)
    for rank in range(crew.RANKS):
        _all_hold(ranks, _FIRST)
        _settled(ranks, rank, _FIRST)
    _released(ranks, _FIRST, "drained")
    _idle(ranks)
    return "all hold until all are acknowledged, and release in the same round"


def _crossed(ranks: Crew) -> str:
    """Of two requests each is confirmed to other ranks."""
    ranks.each("open", _FIRST, how={1: "quiescent", 2: "quiescent"})
    ranks.each("open", _SECOND, how={0: "quiescent", 2: "quiescent"})
    _abort(ranks, _FIRST, _SECOND)
    for rank, room in ((0, _SECOND), (1, _FIRST), (2, _FIRST), (2, _SECOND)):
        _acked(ranks, rank, room)
    _all_hold(ranks, _FIRST, _SECOND)
    _settled(ranks, 0, _FIRST)
    _released(ranks, _FIRST, "drained")
    _all_hold(ranks, _SECOND)
    _settled(ranks, 1, _SECOND)
    _released(ranks, _SECOND, "drained")
    _idle(ranks)
    return "each request is released when all ranks are acknowledged for it, the other one stays"


def _different_clocks(ranks: Crew) -> str:
    """Nothing is confirmed; the hold is over on one rank long before it is over on the others."""
    ranks.each("open", _FIRST)
    _abort(ranks, _FIRST)
    ranks.ask(0, "jump", seconds=situations.HOLD_SECONDS + 1)
    _all_hold(ranks, _FIRST)
    _released(ranks, _FIRST, "timeout")
    _idle(ranks)
    return "the rank whose time is over waits for the others' time"


def _one_dies(ranks: Crew) -> str:
    """What the dead rank's prefill still writes nobody knows; its peers alone are acknowledged."""
    ranks.each("open", _FIRST)
    _abort(ranks, _FIRST)
    ranks.end(2)
    return _survivors(ranks, "a rank died")


def _one_stands_still(ranks: Crew) -> str:
    """A rank that does not get to its queue any more: no longer waited for than by the engine's polls."""
    ranks.each("open", _FIRST)
    _abort(ranks, _FIRST)
    ranks.halt(2)
    return _survivors(ranks, "a rank stood still")


def _idle_alone(ranks: Crew) -> str:
    """Nothing is queued and nothing is held."""
    _idle(ranks)
    return "a rank with nothing to agree on enters no collective"


CASES: Mapping[str, Callable[[Crew], str]] = {
    "nothing-to-hold-on-one": _nothing_to_hold_on_one,
    "acknowledged-on-one": _acknowledged_on_one,
    "crossed": _crossed,
    "different-clocks": _different_clocks,
    "one-dies": _one_dies,
    "one-stands-still": _one_stands_still,
    "idle": _idle_alone,
}


def _abort(ranks: Crew, *rooms: int) -> None:
    """The client hangs up, on all ranks; from then on all must hold."""
    for room in rooms:
        ranks.each("abort", room)
    states = ranks.round()
    how = [state[str(room)] for state in states for room in rooms]
    if set(how) == {"at once"}:
        raise Judged("no hold", "fail", "there is no hold to agree on")
    if set(how) != {"held"}:
        raise Judged("rank-local", "fail", f"after the abort the ranks stand apart: {', '.join(how)}")


def _settled(ranks: Crew, rank: int, room: int) -> None:
    """The writes to this rank are over, and prefill says so to it."""
    ranks.ask(rank, "settle")
    _acked(ranks, rank, room)


def _acked(ranks: Crew, rank: int, room: int) -> None:
    if not ranks.ask(rank, "acked", room=room):
        raise Judged("unclear", "not-run", "no acknowledgement came, so nothing was to agree on")


def _all_hold(ranks: Crew, *rooms: int) -> None:
    for _ in range(_QUIET_ROUNDS):
        states = ranks.round()
        how = [state[str(room)] for state in states for room in rooms]
        if set(how) != {"held"}:
            why = f"one rank must hold, but the ranks stand apart: {', '.join(how)}"
            raise Judged("rank-local", "fail", why)


def _released(ranks: Crew, room: int, expected: str) -> None:
    """Within the hold all ranks release, in one round."""
    end = time.monotonic() + 2 * situations.HOLD_SECONDS + _SLACK
    while time.monotonic() < end:
        how = [state[str(room)] for state in ranks.round()]
        if set(how) != {"held"}:
            break
        time.sleep(0.01)
    if set(how) == {"held"}:
        raise Judged("for ever", "fail", "all are ready, and nothing is released")
    if "held" in how:
        raise Judged("rank-local", "fail", f"released on some ranks alone: {', '.join(how)}")
    if expected == "drained" and set(how) != {expected}:
        raise Judged("timeout", "fail", f"acknowledged everywhere, but released as {', '.join(how)}")
    if expected == "timeout" and set(how[1:]) != {expected}:  # the first one's clock may be ahead
        raise Judged("rank-local", "fail", f"released before the time was over: {', '.join(how)}")


def _survivors(ranks: Crew, what: str) -> str:
    """Those that are left must come back with an error, and must not have given anything back."""
    for rank in ranks.left:
        _settled(ranks, rank, _FIRST)
    replies = ranks.round_of_the_left()
    for rank, reply in replies.items():
        if reply is None:
            raise Judged("hangs", "fail", f"{what}, and rank {rank} waits for it without an end")
        if "states" in reply and reply["states"][str(_FIRST)] != "held":
            raise Judged("rank-local", "fail", f"{what}, and rank {rank} releases without it")
        if "broke" in reply and reply["states"][str(_FIRST)] not in ("held", "queued"):
            raise Judged("rank-local", "fail", f"{what}, and rank {rank} has released without it")
    if any("broke" not in (reply or {}) for reply in replies.values()):
        raise Judged("unnoticed", "fail", f"{what}, and the others go on")
    return f"{what}: the others end with the collective's error, and release nothing"


def _idle(ranks: Crew) -> None:
    """One rank turns alone: it must not wait for the others."""
    for rank in range(crew.RANKS):
        reply = ranks.ask(rank, "tick")
        if reply["collectives"]:
            raise Judged("busy", "fail", "a rank with nothing to agree on enters a collective")
