"""Decode's side of a held release: what prefill may still write to is not given away, whatever has failed.

Fixes 41402 (decode counts acknowledgements before its ABORT leaves), 41404 and 41618 (it holds after every
kind of failure), X5 (a flush waits for what is held). It runs in the scheduler's thread, and an
abort also in that of a recomputation.
"""

from __future__ import annotations

from typing import Any

from .state import holds


def arm(receiver: Any, *, always: bool = False) -> None:
    """Begin to count acknowledgements, once for each request: beginning again would lose those that are in.

    A request whose destination was never announced is not held, and nothing would end the count; `always` is
    for one that was announced to some ranks of prefill before it failed.
    """
    announced = getattr(receiver, "init_time", None) is not None
    if not holds(receiver.kv_mgr) or not (announced or always):
        return
    mine = object()
    if receiver.__dict__.setdefault("_pdguard_armed", mine) is not mine:
        return
    receiver.kv_mgr.register_deferred_abort_room(receiver.bootstrap_room)


def notify(receiver: Any) -> None:
    """Tell prefill, once, that the request is over. A receiver that never met a prefill tells nobody."""
    if receiver.abort_notified or getattr(receiver, "bootstrap_infos", None) is None:
        return
    arm(receiver, always=True)
    receiver._send_abort_notification()
    receiver.abort_notified = True


def told(receiver: Any) -> bool:
    """Whether prefill knows that a failed request is over, being told now at the latest; then it is held.

    Where the ranks have agreed on it (see `agree`), all say what they have agreed on.
    """
    agreed = receiver.__dict__.get("_pdguard_all_hold")
    if agreed is not None:
        return bool(agreed)
    tell = getattr(receiver, "ensure_abort_notified", None)
    if tell is not None:
        tell()
    return bool(receiver.abort_notified)


def waiting(queue: Any) -> bool:
    """Whether pages are held back (X5): an engine that gave its pool away now would give them away too."""
    return bool(getattr(queue, "_deferred_releases", ()))
