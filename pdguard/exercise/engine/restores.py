"""Restores from the host cache on two ranks of decode: do both end a request alike, in the same round?"""

from __future__ import annotations

import importlib
from typing import Any

from pdguard.exercise.engine import boot, stand, world

_ROUNDS = 8
_ROOM = 44

Plan = tuple["str | None", int, int, int]
"""How a rank's restore ends (None: it has nothing to restore), the rounds in which its transfer is over (-1:
it fails) and its copy is over, and the round from which it may start one."""

SITUATIONS: dict[str, tuple[Plan, Plan]] = {
    "both restored": (("restored", 1, 1, 0), ("restored", 1, 1, 0)),
    "failed on one": (("failed", 1, 1, 0), ("restored", 1, 1, 0)),
    "failed on the other": (("restored", 1, 1, 0), ("failed", 1, 1, 0)),
    "failed on one, nothing to restore on the other": (("failed", 1, 1, 0), (None, 1, 1, 0)),
    "failed on one, the other still receives": (("failed", 1, 1, 0), ("restored", 4, 1, 0)),
    "failed on one, the other still copies": (("failed", 1, 1, 0), ("restored", 1, 4, 0)),
    "copied on one, not yet on the other": (("restored", 1, 2, 0), ("restored", 1, 5, 0)),
    "one may not start yet": (("restored", 1, 1, 0), ("restored", 1, 4, 3)),
    "transfer failed on one": (("restored", -1, 1, 0), ("restored", 3, 1, 0)),
}
STAGED = ("both restored", "failed on one", "copied on one, not yet on the other")
"""Those that are seen by way of the staging buffer, too, which polls by a function of its own."""

_RESERVED = "tokens of a failed restore"


def consensus() -> dict[str, Any]:
    """The restore of a prefix ends otherwise, or at another time, on one rank than on the other."""
    stand.switch("off", 1.0)
    stand.configure(disaggregation_mode="decode")
    seen = {name: _alike(world.run(2, _Rank(plans).work)) for name, plans in SITUATIONS.items()}
    for name in STAGED:
        seen[f"{name}, staged"] = _alike(world.run(2, _Rank(SITUATIONS[name], staged=True).work))
    seen[_RESERVED] = _alike(world.run(2, _Rank(SITUATIONS["failed on one"]).reserved))
    saw = {"situations": seen}
    if seen["both restored"] != "committed":
        why = f"a good restore on both ranks: {seen['both restored']}"
        return {"outcome": "unclear", "state": "not-run", "why": why, "saw": saw}
    bad = [name for name, how in seen.items() if how != _expected(name)]
    if bad:
        why = f"{len(bad)} of {len(seen)} situations part the ranks; {bad[0]}: {seen[bad[0]]}"
        return {"outcome": "rank-local", "state": "fail", "why": why, "saw": saw}
    why = "every outcome is the same on both ranks, in the same round"
    return {"outcome": "fixed", "state": "pass", "why": why, "saw": saw}


def _expected(name: str) -> str:
    if name == _RESERVED:
        return "reserved"
    return "failed" if "failed" in name else "committed"


def _alike(ranks: list[dict[str, Any]]) -> str:
    """What both ranks have come to, or how they differ."""
    if ranks[0] == ranks[1] and "end" in ranks[0] and "parted" not in ranks[0]:
        return str(ranks[0]["end"])
    told = [str(one.get("broke") or one["end"]) for one in ranks]
    if told[0] == told[1] and "round" in ranks[0] and "round" in ranks[1]:
        told = [f"{one['end']} in round {one['round']}" for one in ranks]
    reasons = sorted({one["parted"] for one in ranks if "parted" in one})
    return "; ".join([" here, ".join(told) + " there", *reasons])


class _Event:
    """The end of a copy, at a round of the clock."""

    def __init__(self, clock: list[int], end: int) -> None:
        self._clock, self._end = clock, end

    def query(self) -> bool:
        return self._clock[0] >= self._end

    def synchronize(self) -> None:
        self._end = min(self._end, self._clock[0])


class _Rank:
    """A rank's real transfer queue; around it a cache, a receiver and a clock that are made up."""

    def __init__(self, plans: tuple[Plan, Plan], staged: bool = False) -> None:
        self._plans, self._staged = plans, staged
        self._torch: Any = importlib.import_module("torch")
        self._clock = [0]
        self._end: dict[str, Any] = {}
        self._log: stand.Log = []

    def work(self, rank: int) -> dict[str, Any]:
        """Turn the scheduler's rounds; how and when the request left the queue."""
        ends, received, copied, may_start = self._plans[rank]
        poll = boot.member("base", "KVPoll")
        cache = self._cache(copied, may_start)

        def transfer() -> Any:
            if received < 0:
                return poll.Failed
            return poll.Success if self._clock[0] >= received else poll.Transferring

        queue = self._queue(cache)
        entry = self._entry(queue, transfer, ends is not None)
        queue._try_hicache_queue_load_back = lambda found: self._load_back(found, cache, ends)
        queue._commit_transfer_to_req = lambda _entry: self._ended("committed")
        queue.queue.append(entry)
        boot.part("decode").release_kv_cache = lambda *_arguments, **_named: self._ended("failed")
        try:
            while self._clock[0] < _ROUNDS:
                cache.loading_check()
                queue.pop_transferred()
                self._clock[0] += 1
        except world.Parted as error:
            return {**(self._end or {"end": "queued"}), "parted": str(error)}
        return self._end or {"end": "queued"}

    def reserved(self, _rank: int) -> dict[str, Any]:
        """Whether the tokens that a failed restore was to fill are kept back from other requests."""
        queue = self._queue(stand.Stand("cache", self._log))
        entry = self._entry(queue, None, True)
        entry.hicache_restore_status = boot.member("hicache", "HiCacheRestoreResult").FAILED
        queue.queue.append(entry)
        mixin = boot.member("hicache", "DecodeHiCachePreallocMixin")
        admission = stand.Present("admission", self._log, scheduler=queue.scheduler, transfer_queue=queue)
        tokens = mixin._hicache_pending_restore_tokens(admission)
        return {"end": "reserved" if tokens == entry.prefix_match.restore_token_count else "given away"}

    def _ended(self, how: str) -> None:
        self._end = {"end": how, "round": self._clock[0]}

    def _queue(self, cache: Any) -> Any:
        scheduler = stand.Present("scheduler", self._log, enable_decode_hicache=True, enable_hisparse=False)
        rooms = self._torch.full((64, 1), _ROOM, dtype=self._torch.int64)
        return stand.bare(
            boot.member("decode", "DecodeTransferQueue"),
            self._log,
            queue=[],
            gloo_group="ranks",
            tp_rank=0,
            scheduler=scheduler,
            tree_cache=cache,
            enable_staging=self._staged,
            staging_handler=stand.Stand("staging", self._log),
            enable_host_receive=False,
            enable_deferred_kv_release=False,
            metadata_buffers=stand.Stand("metadata", self._log, bootstrap_room=rooms),
            req_to_metadata_buffer_idx_allocator=boot.member("utils", "ReqToMetadataIdxAllocator")(64),
        )

    def _entry(self, queue: Any, transfer: Any, to_restore: bool) -> Any:
        made = stand.request(f"room-{_ROOM}", [1, 2, 3, 4], _ROOM)
        made.kv.req_pool_idx = 1
        manager = stand.Stand("manager", self._log, enable_deferred_decode_kv_release=False)
        receiver = stand.Present(
            *("receiver", self._log),
            poll=transfer,
            kv_mgr=manager,
            abort_notified=False,
            require_staging=False,
        )
        entry = boot.member("decode", "DecodeRequest")(req=made, kv_receiver=receiver)
        entry.metadata_buffer_index = queue.req_to_metadata_buffer_idx_allocator.alloc()
        tokens = self._torch.zeros(2, dtype=self._torch.int64)
        match = boot.member("hicache", "DecodePrefixMatch")
        entry.prefix_match = match(tokens, 2 if to_restore else 0, 0, "node")
        return entry

    def _load_back(self, entry: Any, cache: Any, ends: str | None) -> bool:
        """In the place of the engine's own: its outcome is given, not the work that leads to it."""
        if ends == "failed":
            entry.hicache_restore_status = boot.member("hicache", "HiCacheRestoreResult").FAILED
            return False
        entry.hicache_restored_node = entry.hicache_restore_lock = "restored"
        entry.hicache_restored_kv_indices = self._torch.zeros(2, dtype=self._torch.int64)
        cache.pdguard_to_load.append(entry)
        return True

    def _copy(self, event: _Event) -> Any:
        return stand.Stand("copy", self._log, finish_event=event, node_ids=[])

    def _cache(self, copied: int, may_start: int) -> Any:
        """The engine's tree, with its own questions and collectives; its copies are events of the clock."""
        earlier = [_Event(self._clock, may_start) for _ in range(3)]
        events = [stand.Present("slot", self._log, finish_event=event) for event in earlier]
        counter: Any = stand.Present("counter", self._log, events=events, producer_index=2, num_counters=3)
        copies = [self._copy(event) for event in earlier]
        controller = stand.Present("controller", self._log, layer_done_counter=counter, ack_load_queue=copies)
        to_load: list[Any] = []

        def load() -> int:
            if not to_load:
                return -1
            to_load.clear()
            event = _Event(self._clock, max(copied, self._clock[0] + 1))
            counter.producer_index = (counter.producer_index + 1) % 3
            if not events[counter.producer_index].finish_event.query():
                raise RuntimeError("a slot is used again before its copy is over")
            events[counter.producer_index].finish_event = event
            controller.ack_load_queue.append(self._copy(event))
            return int(counter.producer_index)

        quiet = {
            name: stand.Stand(name, self._log)
            for name in ("dec_lock_ref", "unlock", "finish", "release_aborted_request", "_pp_sync")
        }
        return stand.with_methods_of(
            boot.member("unified", "UnifiedRadixCache"),
            "cache",
            self._log,
            cache_controller=controller,
            pp_rank=0,
            pp_size=1,
            tp_world_size=2,
            attn_cp_group=None,
            attn_tp_group="ranks",
            tp_group="ranks",
            linker=None,
            buffer_pipeline=None,
            metrics_collector=None,
            tree_core=stand.Present("tree", self._log, write_back_duplicate_reclaim_digest=0),
            ready_to_load_host_cache=load,
            pdguard_to_load=to_load,
            **quiet,
        )
