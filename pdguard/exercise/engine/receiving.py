"""Decode's side of a handoff: manager, receiver, transfer queue and scheduler's abort of the engine."""

from __future__ import annotations

import importlib
import time
from typing import Any

from pdguard.exercise.engine import boot, library, peers, situations, stand, wires

_PAGES = (1, 2, 3, 4)
_STEP = 0.01


class Decode:
    """One rank of decode. Its scheduler is a stand-in with the engine's real `Scheduler` methods."""

    def __init__(
        self, backend: str, rank: int = 0, ranks: int = 1, seen: wires.KnownFields | None = None
    ) -> None:
        self._backend, self._rank, self._ranks, self._seen = backend, rank, ranks, seen
        self._log: stand.Log = []
        self._requests: dict[int, Any] = {}
        self._receivers: dict[int, Any] = {}
        self.released: dict[str, float] = {}
        self._held: dict[int, float] = {}
        self._manager: Any = None
        self._queue: Any = None
        self._scheduler: Any = None

    def start(self) -> None:
        """Make the manager, the transfer queue and the scheduler."""
        host = f"10.77.1.{self._rank + 1}"
        session = f"{host}:{18000 + self._rank}"
        self._manager = peers.manager(
            self._backend, "decode", host, self._rank, self._ranks, session, library.Writes()
        )
        stand.one_rank()
        torch: Any = importlib.import_module("torch")
        module = boot.part("decode")
        if not hasattr(module, "release_kv_cache"):
            raise boot.Unavailable("decode has no release_kv_cache to watch")
        module.release_kv_cache = _release
        rooms = torch.zeros((64, 1), dtype=torch.int64)
        self._scheduler = stand.with_methods_of(
            boot.member("scheduler", "Scheduler"),
            "scheduler",
            self._log,
            chunked_req=None,
            mm_receiver=None,
            dllm_config=None,
            waiting_queue=[],
            disaggregation_mode=boot.member("utils", "DisaggregationMode").DECODE,
            collect_inflight_reqs=list,
            disagg_decode_prealloc_queue=None,
        )
        self._scheduler.disagg_decode_prealloc_queue = stand.Stand("prealloc", self._log)
        kind = boot.member("decode", "DecodeTransferQueue")
        offered = {
            "gloo_group": None,
            "req_to_metadata_buffer_idx_allocator": boot.member("utils", "ReqToMetadataIdxAllocator")(64),
            "tp_rank": self._rank,
            "metadata_buffers": stand.Stand("metadata", self._log, bootstrap_room=rooms),
            "scheduler": self._scheduler,
            "tree_cache": stand.Stand("tree_cache", self._log, pdguard_released=self.released),
        }
        self._queue = kind(**stand.accepted(kind, offered))
        self._scheduler.disagg_decode_transfer_queue = self._queue

    @property
    def manager(self) -> Any:
        """The engine's manager."""
        return self._manager

    @property
    def queue(self) -> Any:
        """The engine's transfer queue."""
        return self._queue

    @property
    def backend(self) -> str:
        """The transfer backend, by the engine's name for it."""
        return self._backend

    def forget(self, room: int) -> None:
        """The request is over: what still waits is aborted, and what is held is released."""
        if self.state(room) == "queued":
            self.abort(room)
        end = time.monotonic() + 2 * situations.HOLD_SECONDS
        while self.state(room) in ("queued", "held") and time.monotonic() < end:
            self.tick()
            time.sleep(_STEP)
        self.released.pop(f"room-{room}", None)
        self._held.pop(room, None)

    def open(self, room: int) -> bool:
        """Announce the destination of a request to prefill, and wait for the transfer."""
        if not self._manager.try_ensure_parallel_info(peers.BOOTSTRAP):
            return False
        kind = peers.kv_class(self._backend, "KVReceiver")
        receiver = kind(mgr=self._manager, bootstrap_addr=peers.BOOTSTRAP, bootstrap_room=room)
        numpy: Any = importlib.import_module("numpy")
        receiver.init(0)
        receiver.send_metadata(numpy.array(_PAGES, dtype=numpy.int32), aux_index=0)
        self._add(room, receiver)
        return receiver.bootstrap_infos is not None

    def open_unmet(self, room: int) -> None:
        """The same on a rank that knows of no prefill: nobody is told of a destination."""
        kind = peers.kv_class(self._backend, "KVReceiver")
        receiver = kind(mgr=self._manager, bootstrap_addr=peers.BOOTSTRAP, bootstrap_room=room)
        receiver.init(0)
        self._add(room, receiver)

    def notes(self) -> list[str]:
        """What is not real in this process."""
        return list(boot.stand_ins)

    def strange(self) -> list[str]:
        """Names in prefill's answer about itself that this engine does not know."""
        return [] if self._seen is None else list(self._seen.unknown)

    def open_fake(self, room: int) -> None:
        """A request without prefill, as the engine makes it for warm-up and benchmarks."""
        kind = boot.member("fake", "FakeKVReceiver")
        receiver = kind(mgr=self._manager, bootstrap_addr="fake", bootstrap_room=room)
        receiver.init(0)
        self._add(room, receiver)

    def _add(self, room: int, receiver: Any) -> None:
        made = stand.request(f"room-{room}", [1, 2, 3, 4], room)
        made.kv.req_pool_idx = 1
        self._receivers[room] = receiver
        entry = boot.member("decode", "DecodeRequest")(req=made, kv_receiver=receiver)
        entry.metadata_buffer_index = self._queue.req_to_metadata_buffer_idx_allocator.alloc()
        self._requests[room] = entry
        self._queue.add(entry)

    def abort(self, room: int) -> None:
        """The client hangs up: the engine's own `Scheduler.abort_request`; nothing arrives meanwhile."""
        with wires.Context.net.paused():
            self.abort_while_messages_arrive(room)

    def abort_while_messages_arrive(self, room: int) -> None:
        """The same without the pause: an answer may overtake what the scheduler still has to note down."""
        message = stand.Present("abort", [], rid=f"room-{room}", abort_all=False, abort_message=None)
        self._scheduler.abort_request(message)

    def fail(self, room: int, origin: str) -> None:
        """Let the transfer fail for a reason that decode did not start."""
        poll = boot.member("base", "KVPoll")
        entry = self._requests[room]
        if origin == "waiting-timeout":
            self._manager.waiting_timeout = 0
            self._receivers[room].init_time = time.time() - 1
        elif origin == "transport":
            self._manager.record_failure(room, "transport failed (exercise)")
            self._manager.update_status(room, poll.Failed)
        elif origin == "hicache-restore":
            self._scheduler.enable_decode_hicache = True
            for name in ("_process_hicache_local_restores", "_clean_hicache_prefetch_resources"):
                setattr(self._queue, name, stand.Stand(name, self._log))
            self._queue.metadata_buffers.bootstrap_room[entry.metadata_buffer_index] = room
            entry.hicache_restore_status = boot.member("hicache", "HiCacheRestoreResult").FAILED
            self._receivers[room].conclude_state = poll.Success
        else:
            raise boot.Unavailable(f"no such origin: {origin}")

    def tick(self) -> None:
        """One turn of the scheduler: held releases, then the transfer queue, as in the engine's loop."""
        self.resolve()
        begun = time.monotonic()
        self._queue.pop_transferred()
        for room, entry in self._requests.items():
            if entry not in self._queue.queue and entry.req.rid not in self.released:
                self._held.setdefault(room, begun)

    def resolve(self) -> None:
        """Look after the held releases only."""
        resolve = getattr(self._queue, "resolve_deferred_releases", None)
        if resolve is not None:
            resolve()

    def state(self, room: int) -> str:
        """queued, held; or how it was released: at once, drained (before the hold was over) or timeout."""
        released = self.released.get(f"room-{room}")
        if released is None:
            return "queued" if self._requests[room] in self._queue.queue else "held"
        if room not in self._held:
            return "at once"
        return "drained" if released - self._held[room] < situations.HOLD_SECONDS else "timeout"


def _release(wanted: Any, tree_cache: Any, *_arguments: Any, **_named: Any) -> None:
    """Takes the place of the engine's function that gives pages back: note when it was called."""
    tree_cache.pdguard_released.setdefault(wanted.rid, time.monotonic())
    wanted.kv.req_pool_idx = None
