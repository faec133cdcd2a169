"""Fix X6, decode's side: a request that decode refuses at its door is ended on prefill at once.

Prefill is told by an ABORT, as it is of any request that ends on decode; a part behind those of the engine
says that nothing was ever begun. Finding out whom to tell may ask prefill's bootstrap server, so that it is
done beside the scheduler, by one thread that forgets what it cannot deliver in time.
"""

from __future__ import annotations

import itertools
import logging
import queue as queues
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .refusals import MARK, PLACE, is_refused, speaks, why
from .state import FAILED

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds after which prefill is not told any more; it then waits for its own timeout."""

PAUSE = 0.2
"""Seconds between two tries to learn which rank of prefill has the room."""

REST = 2.0
"""Seconds for which a bootstrap server that did not answer is left alone."""

MOST = 4096
"""Errands that wait; more are dropped."""

STILL_HELD = "prefill has not said that nothing is written any more for the room's last request"

_own_rooms = itertools.count(1)
_starting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Errand:
    """One refused request: what leads to its prefill, and what to say there."""

    request: Any
    address: str
    reason: str
    until: float


def at_decode(queue: Any, req: Any, re_enters: bool = False) -> None:
    """A request comes to decode's door; of one that intake has refused prefill is told."""
    if re_enters:
        return
    if not is_refused(req):
        if req.bootstrap_room is not None:
            _part(queue, req)
    elif speaks(queue, req):
        _send(queue, req)


def _part(queue: Any, req: Any) -> None:
    """Part a room from its last request, which is over but whose pages are held, before another one begins.

    What is refused is answered at once, and may come again at once with the same number. When the pages are
    released at last the room's state would go with them, and the scheduler ends when it asks for a state that
    is not there. The pages stay held; while prefill may still write to them, the room stays failed as it is,
    and the new request fails with it.
    """
    for entry in getattr(getattr(queue, "transfer_queue", None), "_deferred_releases", ()):
        held, acks = entry[0], entry[-1]
        receiver = held.kv_receiver
        if held.req.bootstrap_room != req.bootstrap_room or receiver.clear is _nothing:
            continue
        # No acknowledgement is counted where something else than prefill decides.
        if acks and receiver.kv_mgr.is_abort_release_safe(req.bootstrap_room, acks):
            receiver.clear()
        else:
            receiver.kv_mgr.record_failure(req.bootstrap_room, STILL_HELD)
        receiver.clear = _nothing


def _nothing() -> None:
    """What a receiver clears that has no room any more."""


def over_capacity(queue: Any, req: Any, exceeds: bool, re_enters: bool = False) -> bool:
    """Pass on whether the request exceeds decode's capacity, which has answered it by now."""
    if exceeds and not re_enters and speaks(queue, req):
        _send(queue, req)
    return exceeds


def _send(queue: Any, req: Any) -> None:
    from sglang.srt.disaggregation import decode

    request = SimpleNamespace(
        bootstrap_host=req.bootstrap_host,
        bootstrap_port=req.bootstrap_port,
        bootstrap_room=req.bootstrap_room,
        disagg_prefill_dp_rank=req.disagg_prefill_dp_rank,
    )
    errand = Errand(request, decode._bootstrap_addr(req), why(req), time.monotonic() + PATIENCE)
    try:
        _line(queue).put_nowait(errand)
    except queues.Full:
        logger.debug("pdguard: too many refused requests at once; prefill is not told of this one")


def _line(queue: Any) -> queues.Queue[Errand]:
    """Where the errands of `queue` wait; its thread is started with it."""
    found = queue.__dict__.get("_pdguard_errands")
    if found is None:
        with _starting:
            found = queue.__dict__.get("_pdguard_errands")
            if found is None:
                found = queue.__dict__["_pdguard_errands"] = queues.Queue(MOST)
                threading.Thread(
                    target=_run, args=(queue, found), daemon=True, name="pdguard-errands"
                ).start()
    line: queues.Queue[Errand] = found
    return line


def _run(queue: Any, line: queues.Queue[Errand]) -> None:
    waiting: list[Errand] = []
    silent: dict[str, float] = {}
    again = 0.0
    while True:
        # With nothing to try again there is nothing to do until another request is refused.
        new = _next(line, max(again - time.monotonic(), 0.0) if waiting else None)
        if time.monotonic() < again:
            waiting += deliver(queue, new, silent)
            continue
        waiting = deliver(queue, waiting + new, silent)
        again = time.monotonic() + PAUSE


def _next(line: queues.Queue[Errand], seconds: float | None) -> list[Errand]:
    """What has come, after at most `seconds` if nothing has."""
    new: list[Errand] = []
    try:
        new.append(line.get(timeout=seconds))
        while len(new) < MOST:
            new.append(line.get_nowait())
    except queues.Empty:
        pass
    return new


def deliver(queue: Any, errands: list[Errand], silent: dict[str, float]) -> list[Errand]:
    """Run the errands once; those that are left could not be run yet, and may be in time later.

    `silent` holds the bootstrap servers that did not answer, with the time at which they are asked again.
    """
    left: list[Errand] = []
    unknown: dict[str, list[Errand]] = {}
    for address in [address for address, until in silent.items() if until <= time.monotonic()]:
        del silent[address]
    for errand in errands:
        if time.monotonic() >= errand.until or len(left) >= MOST:
            logger.debug("pdguard: prefill at %s is not told of a refused request in time", errand.address)
            continue
        if errand.address in silent:
            left.append(errand)
            continue
        try:
            if not queue.kv_manager.try_ensure_parallel_info(errand.address):
                silent[errand.address] = time.monotonic() + REST
                left.append(errand)
                continue
            rank = queue._resolve_prefill_dp_rank(errand.request)
            if rank is None:
                unknown.setdefault(errand.address, []).append(errand)
            else:
                _tell(queue, errand, int(rank))
        except Exception:
            logger.warning("pdguard: prefill is not told of a refused request", exc_info=True)
    for address, some in unknown.items():
        left += _ask_and_tell(queue, address, some)
    return left


def _ask_and_tell(queue: Any, address: str, errands: list[Errand]) -> list[Errand]:
    """The same where only the bootstrap server knows which data rank of prefill has the room, or will."""
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver

    left: list[Errand] = []
    try:
        rooms = [errand.request.bootstrap_room for errand in errands]
        ranks = CommonKVReceiver.query_prefill_dp_ranks(address, rooms)
    except Exception:
        logger.warning("pdguard: prefill at %s does not say which rank has a room", address, exc_info=True)
        return errands
    for errand in errands:
        rank = ranks.get(str(errand.request.bootstrap_room))
        if rank is None:
            left.append(errand)
            continue
        try:
            _tell(queue, errand, int(rank))
        except Exception:
            logger.warning("pdguard: prefill is not told of a refused request", exc_info=True)
    return left


def _tell(queue: Any, errand: Errand, rank: int) -> None:
    """Send the ABORT to every rank of prefill that this rank of decode would have met.

    A receiver knows whom to meet. This one gets a room that no request has, so that nothing that is done with
    it touches a request.
    """
    from sglang.srt.disaggregation.utils import KVClassType, get_kv_class

    manager = queue.kv_manager
    if manager.request_status.get(errand.request.bootstrap_room) not in (None, FAILED):
        return  # decode has accepted another request of this number since
    own = -next(_own_rooms)
    receiver: Any = get_kv_class(queue.transfer_backend, KVClassType.RECEIVER)(
        mgr=manager, bootstrap_addr=errand.address, bootstrap_room=own
    )
    try:
        receiver.init(rank)
        parts = [
            b"ABORT",
            str(errand.request.bootstrap_room).encode(),
            manager.local_ip.encode(),
            str(manager.rank_port).encode(),
        ]
        # No release counts from zero: no acknowledgement is asked for.
        parts += [b"0"] * (PLACE - len(parts)) + [MARK, errand.reason.encode()]
        for info in getattr(receiver, "bootstrap_infos", None) or ():
            socket, lock = receiver._connect_to_bootstrap_server(info)
            with lock:
                socket.send_multipart(parts)
    finally:
        receiver.clear()
        manager.addr_to_rooms_tracker[errand.address].discard(own)
        with manager.failure_lock:
            manager.failure_records.pop(own, None)
