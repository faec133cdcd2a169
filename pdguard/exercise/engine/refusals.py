"""What becomes of the other half when one half refuses a request at its door, and of the room afterwards."""

from __future__ import annotations

import time
from typing import Any, Protocol

from pdguard.exercise.engine import boot, peers, receiving, situations, stand, wires

CASES = {
    "refused-by-prefill": "prefill refuses before decode asks",
    "refused-by-prefill-late": "prefill refuses when decode has asked already",
    "refused-by-decode": "decode refuses before prefill has the request",
    "refused-by-decode-late": "decode refuses when prefill waits already",
    "refused-by-both": "both refuse, prefill first",
    "refused-by-both-late": "both refuse, decode first",
}
"""The orders in which a request can be refused."""

SOON = 1.0
"""Seconds in which the other half has to learn of it. What waits longer would wait for its whole timeout."""

_SETTLE = 0.3
_STEP = 0.01
_SIZE = 1 << 20
_TABLES = (
    *("request_status", "transfer_infos", "req_to_decode_prefix_len", "failure_records"),
    *("_staging_outstanding", "_deferred_ack_targets", "_deferred_abort_ack_tracker"),
    *("required_prefill_response_num_table", "prefill_response_tracker", "transfer_statuses"),
)
"""What the managers keep by room. An engine has those that it needs."""


class PrefillSide(situations.PrefillSide, Protocol):
    """Prefill with its door."""

    def refuse(self, room: int) -> Any:
        """A request that intake has refused comes to the door."""

    def admit(self, room: int) -> Any:
        """A request comes to the door, and is queued."""

    def ended(self, room: int) -> Any:
        """Whether the sender of the room fails soon."""

    def forget(self, room: int) -> Any:
        """The request is over, whatever has become of it."""

    def left(self) -> Any:
        """The tables in which there is anything of any room."""


class DecodeSide(situations.DecodeSide, Protocol):
    """One rank of decode with its door."""

    def refuse(self, room: int) -> Any:
        """A request that intake has refused comes to the door."""

    def ended(self, room: int) -> Any:
        """Whether the request leaves the queue for the transfer soon."""

    def forget(self, room: int) -> Any:
        """The request is over, whatever has become of it."""

    def left(self) -> Any:
        """The tables in which there is anything of any room."""


class Prefill(peers.Prefill):
    """Prefill's side with the engine's bootstrap queue, and a scheduler that has its real methods."""

    def start(self) -> None:
        """Make the manager, the queue and the scheduler."""
        super().start()
        log: stand.Log = []
        scheduler = _scheduler("PREFILL", log)
        self._door = scheduler.disagg_prefill_bootstrap_queue = stand.bare(
            boot.member("prefill", "PrefillBootstrapQueue"),
            log,
            queue=[],
            scheduler=scheduler,
            kv_manager=self.manager,
            transfer_backend=boot.member("utils", "TransferBackend")(self.backend),
            bootstrap_port=8998,
            max_total_num_tokens=_SIZE,
            max_input_len=_SIZE,
            tp_rank=0,
            pp_rank=0,
        )
        self._scheduler = scheduler

    def refuse(self, room: int) -> None:
        """A request that intake has refused comes to the door; without fix 38935 it passes."""
        self._come(stand.rejected(f"refused-{room}", room))

    def admit(self, room: int) -> None:
        """A request comes to the door, and is queued."""
        if not self._come(stand.request(f"admitted-{room}", [1, 2, 3, 4], room)):
            raise boot.Unavailable("prefill's door does not let a request pass that fits")

    def _come(self, made: Any) -> bool:
        self._scheduler._add_request_to_queue(made)
        if made not in self._door.queue:
            return False
        self._door.queue.remove(made)
        self.adopt(made.bootstrap_room, made.disagg_kv_sender)
        return True

    def ended(self, room: int) -> bool:
        """Whether the sender of the room fails soon."""
        failed = boot.member("base", "KVPoll").Failed
        return peers.until(lambda: self.sender(room).poll() == failed, SOON)

    def forget(self, room: int) -> None:
        """The request is over, whatever has become of it."""
        if self.knows(room):
            self.cancel(room)

    def left(self) -> list[str]:
        """The tables in which there is anything of any room."""
        return _left(self.manager)


class Decode(receiving.Decode):
    """One rank of decode with the engine's queue of requests that wait for a destination."""

    def start(self) -> None:
        """Make the manager, the queues and the scheduler."""
        super().start()
        log: stand.Log = []
        scheduler = _scheduler("DECODE", log)
        scheduler.disagg_decode_prealloc_queue = stand.bare(
            boot.member("decode", "DecodePreallocQueue"),
            log,
            queue=[],
            retracted_queue=[],
            pending_reqs=[],
            scheduler=scheduler,
            kv_manager=self.manager,
            transfer_backend=boot.member("utils", "TransferBackend")(self.backend),
            max_total_num_tokens=_SIZE,
            num_reserved_decode_tokens=16,
        )
        self._entrance = scheduler

    def refuse(self, room: int) -> None:
        """A request that intake has refused comes to the door."""
        self._entrance._add_request_to_queue(stand.rejected(f"refused-{room}", room))

    def ended(self, room: int) -> bool:
        """Whether the request leaves the queue for the transfer soon."""

        def gone() -> bool:
            self.tick()
            return self.state(room) != "queued"

        return peers.until(gone, SOON)

    def left(self) -> list[str]:
        """The tables in which there is anything of any room."""
        tracked = [
            rooms for rooms in self.manager.addr_to_rooms_tracker.values() if min(rooms, default=0) < 0
        ]
        return [*_left(self.manager), *(["addr_to_rooms_tracker"] if tracked else [])]


def _scheduler(mode: str, log: stand.Log) -> Any:
    return stand.with_methods_of(
        boot.member("scheduler", "Scheduler"),
        "scheduler",
        log,
        disaggregation_mode=getattr(boot.member("utils", "DisaggregationMode"), mode),
        waiting_queue=[],
        chunked_req=None,
    )


def _left(manager: Any) -> list[str]:
    return [name for name in _TABLES if getattr(manager, name, None)]


def drive(case: str, prefill: PrefillSide, decodes: list[DecodeSide], room: int) -> dict[str, Any]:
    """Refuse one request in one of the orders, then serve one that has its room; name how both have gone."""
    released = _refused(case, prefill, decodes, room)
    _after(prefill, decodes, room, case)
    served = _served(prefill, decodes, room)
    left = sorted({*prefill.left(), *(name for decode in decodes for name in decode.left())})
    saw = {"released": released, "served afterwards": served, "left": left}
    if not served:
        return _told("poisoned", "a later request of the same number is not served", saw)
    if not released:
        return _told("waits", "the half that accepted is not told: it would wait for its whole timeout", saw)
    if left:
        return _told("left behind", f"nothing waits, but something stays in {', '.join(left)}", saw)
    return _told("released", f"{CASES[case]}: the other half is released at once", saw)


def _told(outcome: str, why: str, saw: dict[str, Any]) -> dict[str, Any]:
    state = "pass" if outcome == "released" else "fail"
    return {"outcome": outcome, "state": state, "why": why, "saw": saw}


def _refused(case: str, prefill: PrefillSide, decodes: list[DecodeSide], room: int) -> bool:
    """Whether the half that accepted was released; True where none did."""
    late = case.endswith("-late")
    if case.startswith("refused-by-both"):
        doors = [prefill.refuse, *(decode.refuse for decode in decodes)]
        for refuse in reversed(doors) if late else doors:
            refuse(room)
            time.sleep(_SETTLE)
        return True
    if case.startswith("refused-by-prefill"):
        if not late:
            prefill.refuse(room)
        for decode in decodes:
            if not decode.open(room):
                raise situations.Stuck("decode could not announce its destination")
        if late:
            if not prefill.ready(room):
                raise situations.Stuck("prefill did not take decode's destination")
            prefill.refuse(room)
        return all(decode.ended(room) for decode in decodes)
    if late:
        prefill.admit(room)
    for decode in decodes:
        decode.refuse(room)
    if not late:
        time.sleep(_SETTLE)
        prefill.admit(room)
    return bool(prefill.ended(room))


def _after(prefill: PrefillSide, decodes: list[DecodeSide], room: int, case: str) -> None:
    """Whoever still waits gives up, as after the timeout."""
    if case.startswith("refused-by-prefill"):
        for decode in decodes:
            decode.forget(room)
    prefill.forget(room)
    time.sleep(_SETTLE)


def _served(prefill: PrefillSide, decodes: list[DecodeSide], room: int) -> bool:
    """Whether a request of this number gets as far as its first write; then it is taken back."""
    prefill.set_writes("pass")
    prefill.admit(room)
    together = all(decode.open(room) for decode in decodes) and bool(prefill.ready(room))
    served = together and bool(prefill.send(room))
    for decode in decodes:
        decode.forget(room)
    prefill.forget(room)
    time.sleep(_SETTLE)
    return served


def refusals(backend: str, cases: list[str], hold: str, one_room: bool) -> dict[str, Any]:
    """Several orders one after the other, between one rank of prefill and two of decode of this process.

    `one_room`: all of them with requests of the same number.
    """
    stand.switch(hold, situations.HOLD_SECONDS)
    prefill = Prefill(backend)
    wires.lay(wires.Net(), prefill.bootstrap.web)
    prefill.start()
    decodes = [Decode(backend, rank, 2) for rank in range(2)]
    for decode in decodes:
        decode.start()
    saw: dict[str, Any] = {}
    worst: dict[str, Any] = {}
    for number, case in enumerate(cases):
        try:
            found = drive(case, prefill, list(decodes), 61 if one_room else 61 + number)
        except situations.Stuck as error:
            return {"outcome": "stuck", "state": "not-run", "why": str(error)}
        saw[case] = found["saw"]
        if not worst or (worst["state"] == "pass" and found["state"] == "fail"):
            worst = found
    return {**worst, "saw": saw}
