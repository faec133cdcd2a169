"""When decode gives pages back: after every kind of failure, after the whole hold, with no prefill at all."""

from __future__ import annotations

import importlib
import time
from typing import Any

from pdguard.exercise.engine import boot, peers, receiving, situations, stand, wires

ORIGINS = ("prefill-failure", "waiting-timeout", "transport", "hicache-restore")
_ROOM = 43
_ACK_SECONDS = 4.0
_MORE_ROUNDS = 5
"""In which a rank that has its acknowledgement must go on holding for the other."""


def _pair(backend: str, hold: str) -> tuple[peers.Prefill, receiving.Decode, wires.Net]:
    stand.switch(hold, situations.HOLD_SECONDS)
    prefill = peers.Prefill(backend)
    net = wires.Net()
    wires.lay(net, prefill.bootstrap.web)
    prefill.start()
    decode = receiving.Decode(backend)
    decode.start()
    return prefill, decode, net


def _in_flight(prefill: peers.Prefill, decode: receiving.Decode, mode: str = "hold") -> None:
    prefill.open(_ROOM)
    if not decode.open(_ROOM) or not prefill.ready(_ROOM):
        raise boot.Unavailable("the two managers did not come together")
    prefill.set_writes(mode)
    if not prefill.send(_ROOM):
        raise boot.Unavailable("prefill started no write")


def failure(backend: str, origin: str, hold: str) -> dict[str, Any]:
    """A transfer fails, not because decode gave up: are the pages held while a write may be on its way?"""
    prefill, decode, _ = _pair(backend, hold)
    _in_flight(prefill, decode, "fail" if origin == "prefill-failure" else "hold")
    if origin != "prefill-failure":
        decode.fail(_ROOM, origin)
    end = time.monotonic() + 2 * situations.HOLD_SECONDS
    while decode.state(_ROOM) == "queued":
        if time.monotonic() > end:
            return {"outcome": "unnoticed", "state": "fail", "why": "decode never learnt of the failure"}
        decode.tick()
        time.sleep(0.01)
    held = decode.state(_ROOM) != "at once"
    why = "the pages are held" if held else "released at once, while a write may be on its way"
    return {"outcome": "held" if held else "no hold", "state": "pass" if held else "fail", "why": why}


def timeout(backend: str, hold: str) -> dict[str, Any]:
    """Prefill falls silent after the abort: the hold must last its time, and no longer."""
    _, decode, net = (parts := _pair(backend, hold))
    _in_flight(parts[0], decode)
    for address in [address for address in net.boxes if peers.PREFILL_HOST in address]:
        del net.boxes[address]
    decode.abort(_ROOM)
    begun = time.monotonic()
    how = _ended(decode)
    word = {"at once": "no hold", "held": "for ever"}.get(how, how)
    why = f"released after {time.monotonic() - begun:.2f} s of {situations.HOLD_SECONDS:g} s"
    return {"outcome": word, "state": "pass" if how == "timeout" else "fail", "why": why}


def fast_ack(backend: str) -> dict[str, Any]:
    """Prefill's acknowledgement arrives before decode's abort has returned: is it counted?"""
    prefill, decode, net = _pair(backend, "on")
    prefill.open(_ROOM)
    if not decode.open(_ROOM) or not prefill.ready(_ROOM):
        raise boot.Unavailable("the two managers did not come together")
    net.linger = 0.3
    decode.abort_while_messages_arrive(_ROOM)
    net.linger = 0.0
    how = _ended(decode)
    if how == "drained":
        return {"outcome": "drained", "state": "pass", "why": "the acknowledgement is counted"}
    why = "an acknowledgement that comes at once is lost" if how == "timeout" else "there is no hold"
    return {"outcome": "no hold" if how == "at once" else how, "state": "fail", "why": why}


def _ended(decode: receiving.Decode) -> str:
    """Turn the scheduler until the pages are given back; how that came about."""
    end = time.monotonic() + 3 * situations.HOLD_SECONDS + 5
    while decode.state(_ROOM) in ("queued", "held") and time.monotonic() < end:
        decode.tick()
        time.sleep(0.01)
    return decode.state(_ROOM)


def fake(hold: str) -> dict[str, Any]:
    """The client of a request without prefill hangs up: no hold is needed, and nothing may break."""
    _, decode, _ = _pair("mooncake", hold)
    decode.open_fake(_ROOM)
    try:
        decode.abort(_ROOM)
        decode.tick()
    except AttributeError as error:
        why = f"the scheduler would die: {error}"
        return {"outcome": "crash", "state": "fail", "why": why}
    how = decode.state(_ROOM)
    good = how == "at once"
    why = "released at once" if good else f"{how} after the abort"
    return {"outcome": "fixed" if good else how, "state": "pass" if good else "fail", "why": why}


def agreement(backend: str) -> dict[str, Any]:
    """This rank has its acknowledgement, the other rank of decode has not: both must go on holding."""
    prefill, decode, _ = _pair(backend, "on")
    _in_flight(prefill, decode)
    decode.abort(_ROOM)
    decode.tick()
    if decode.state(_ROOM) != "held":
        return {"outcome": "no hold", "state": "fail", "why": "there is no hold to agree on"}
    distributed: Any = importlib.import_module("torch.distributed")
    asked: list[int] = []

    ready = False

    def the_other_says(tensor: Any, *_arguments: Any, **_named: Any) -> None:
        asked.append(1)
        if not ready:
            tensor.zero_()

    distributed.all_reduce = the_other_says
    distributed.get_world_size = lambda *_arguments, **_named: 2
    if not prefill.failed(_ROOM):
        raise boot.Unavailable("prefill did not take the abort")
    prefill.set_writes("pass")
    if not peers.until(lambda: decode.manager.is_abort_release_safe(_ROOM, 1), _ACK_SECONDS):
        why = "no acknowledgement came, so nothing was to agree on"
        return {"outcome": "unclear", "state": "not-run", "why": why}
    for _ in range(_MORE_ROUNDS):
        decode.resolve()
    if decode.state(_ROOM) != "held" or not asked:
        why = "released on this rank's acknowledgement alone; the other rank still holds"
        return {"outcome": "rank-local", "state": "fail", "why": why}
    ready = True
    decode.resolve()
    if decode.state(_ROOM) == "held":
        return {"outcome": "for ever", "state": "fail", "why": "both are ready, and nothing is released"}
    return {"outcome": "fixed", "state": "pass", "why": "the ranks release together"}


def batch_cap(limit: int) -> dict[str, Any]:
    """A limit on the indices of one call of Mooncake: is a longer transfer split?"""
    prefill, decode, _ = _pair("mooncake", "default")
    _in_flight(prefill, decode, "pass")
    page, longest = 64, max(sum(lengths) for lengths in prefill.writes.calls)
    saw = {"calls": [sum(lengths) // page for lengths in prefill.writes.calls]}
    if longest <= limit * page:
        return {
            "outcome": "capped",
            "state": "pass",
            "why": f"no call is longer than {limit} pages",
            "saw": saw,
        }
    why = f"a call of {longest // page} pages, though the limit is {limit}"
    return {"outcome": "absent", "state": "fail", "why": why, "saw": saw}
