"""Requests of decode are taken back while a copy to the host still reads their pages: who waits for whom?

Scheduler, batch and offload manager are the engine's; a copy reads its pages when its event is waited for, or
at the very end. Pages that are given back are written to at once, as their next owner would do.
"""

from __future__ import annotations

import importlib
import queue
from array import array
from typing import Any
from weakref import WeakKeyDictionary

from pdguard.exercise.engine import boot, stand, world

_PAGE = 2
_OWN, _OTHER = 7, 9

# Case to the ranks; each says how it is taken back, and whether its copy could begin.
CASES: dict[str, tuple[tuple[str, bool], ...]] = {
    "memory": (("memory", True),),
    "pause": (("pause", True),),
    "nothing-copied": (("memory", False),),
    "pause-nothing-copied": (("pause", False),),
    "two-ranks": (("memory", True), ("memory", True)),
    "two-ranks-pause": (("pause", True), ("pause", True)),
    # The host memory of one rank was full.
    "copied-on-one": (("memory", False), ("memory", True)),
}


def drain(case: str) -> dict[str, Any]:
    """What the copies have read, once the pages have been given back."""
    stand.configure(disaggregation_mode="decode", page_size=_PAGE)
    plans = CASES[case]
    ranks = world.run(len(plans), lambda rank: _Rank(len(plans)).work(*plans[rank]))
    saw = {"ranks": ranks}
    strange = [one for one in ranks if not {"given back", "refused"} & set(one)]
    if strange and all("broke" in one for one in ranks):
        return {"outcome": "broke", "state": "not-run", "why": str(strange[0])[:300], "saw": saw}
    if strange or len({"refused" in one for one in ranks}) > 1:
        return {"outcome": "rank-local", "state": "fail", "why": "the ranks part ways", "saw": saw}
    if any(one.get("read") == _OTHER for one in ranks):
        why = "the pages are given away while the copy still reads them: it holds another request's values"
        return {"outcome": "vulnerable", "state": "fail", "why": why, "saw": saw}
    copies = any(copied for _, copied in plans)
    if any("refused" in one for one in ranks):
        # It ends the engine, so it is right only where the ranks cannot wait for the same copies.
        state = "pass" if len(set(plans)) > 1 else "fail"
        return {"outcome": "refused", "state": state, "why": "no rank gives pages away", "saw": saw}
    if not all(one["given back"] for one in ranks):
        return {"outcome": "kept", "state": "fail", "why": "the pages were not given back", "saw": saw}
    if copies:
        why = "the copy is over before its pages are given back"
        return {"outcome": "drained", "state": "pass", "why": why, "saw": saw}
    why = "with no copy, nothing is in the way"
    return {"outcome": "given back", "state": "pass", "why": why, "saw": saw}


class _Copy:
    """A copy of pages to the host, and the event that tells of its end."""

    def __init__(self, device: Any, indices: Any) -> None:
        self._device, self._indices = device, indices.clone()
        self.read: int | None = None

    def query(self) -> bool:
        return self.read is not None

    def synchronize(self) -> None:
        """The copy runs, at the latest now; it reads what is there now."""
        if self.read is None:
            self.read = int(self._device[self._indices].max())


class _Controller:
    """As much of the cache's controller as the offload manager uses."""

    def __init__(self, device: Any, room: bool) -> None:
        self._device, self._room = device, room
        self.copies: list[_Copy] = []
        self.ack_write_queue: list[Any] = []
        self.ack_backup_queue: queue.Queue[Any] = queue.Queue()

    def write(self, device_indices: Any, node_id: int, **_named: Any) -> Any:
        """Begin a copy; None where the host has no memory left."""
        if not self._room:
            return None
        copy = _Copy(self._device, device_indices)
        self.copies.append(copy)
        self.ack_write_queue.append(stand.Stand("copy", [], finish_event=copy, node_ids=[node_id]))
        return device_indices

    def write_storage(self, *_arguments: Any, **_named: Any) -> int:
        """What was copied goes on to the storage."""
        return 1

    def get_hash_str(self, _tokens: Any, prior: Any = None) -> str:
        """Any name will do."""
        return f"{prior}+"


class _Rank:
    """One rank of decode with one running request, which is half copied to the host."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._log: stand.Log = []
        self._given_back = 0

    def work(self, how: str, copied: bool) -> dict[str, Any]:
        """Begin the copy, take the request back, let the copy end."""
        torch: Any = importlib.import_module("torch")
        self._device = torch.full((32,), _OWN, dtype=torch.int64)
        self._rows = torch.arange(32, dtype=torch.int64).reshape(2, 16)
        controller = _Controller(self._device, copied)
        manager = self._manager(controller)
        self._watch()
        running = self._request()
        if manager.offload_kv_cache(running) is not copied:
            raise boot.Unavailable("the engine began no copy, or one that it must not begin")
        scheduler = self._scheduler(manager, running)
        try:
            if how == "memory":
                scheduler.update_running_batch(scheduler.running_batch)
            else:
                scheduler.pause_generation(stand.Present("pause", self._log, mode="retract"))
        except RuntimeError as error:
            if self._given_back:
                raise
            return {"refused": str(error)[:120]}
        for copy in controller.copies:
            copy.synchronize()
        read = [copy.read for copy in controller.copies]
        return {"given back": self._given_back, "read": read[0] if read else None}

    def _watch(self) -> None:
        """In the place of the functions that give pages back and make copies of their own."""
        module = boot.part("schedule_batch")
        if not hasattr(module, "release_kv_cache"):
            raise boot.Unavailable("the batch has no release_kv_cache to watch")

        def give_back(wanted: Any, *_arguments: Any, **_named: Any) -> None:
            self._device[self._rows[wanted.kv.req_pool_idx]] = _OTHER
            self._given_back += 1
            wanted.kv.req_pool_idx = None

        module.release_kv_cache = give_back
        for name in ("retraction_backup", "evict_from_tree_cache"):
            if hasattr(module, name):
                setattr(module, name, lambda *_arguments, **_named: True)

    def _request(self) -> Any:
        made = stand.request("running", [1, 2, 3, 4], 45)
        made.output_ids.extend([5, 6, 7, 8, 9])
        if isinstance(made.output_ids, array):
            made.origin_input_ids = array(made.output_ids.typecode, made.origin_input_ids)
        made.kv.req_pool_idx = 1
        return made

    def _manager(self, controller: _Controller) -> Any:
        return stand.bare(
            boot.member("offload", "DecodeKVCacheOffloadManager"),
            self._log,
            req_to_token_pool=stand.Present("rows", self._log, req_to_token=self._rows),
            page_size=_PAGE,
            offload_stride=_PAGE,
            request_counter=0,
            cache_controller=controller,
            decode_host_mem_pool=stand.Present("host", self._log),
            tp_group="ranks",
            tp_world_size=self._ranks,
            ongoing_offload={},
            ongoing_backup={},
            offloaded_state=WeakKeyDictionary(),
            offload_inflight=WeakKeyDictionary(),
        )

    def _scheduler(self, manager: Any, running: Any) -> Any:
        pool = stand.Present("pool", self._log, available_size=lambda: 0)
        tree = stand.Present("tree", self._log, req_to_token_pool=object())
        reqs = [running]

        def filter_batch(*_arguments: Any, keep_indices: Any = None, **_named: Any) -> None:
            batch.reqs = reqs if keep_indices is None else [reqs[i] for i in keep_indices]

        batch: Any = stand.with_methods_of(
            *(boot.member("schedule_batch", "ScheduleBatch"), "batch", self._log),
            reqs=reqs,
            filter_batch=filter_batch,
            check_decode_mem=lambda **_named: False,
            is_empty=lambda: not batch.reqs,
            batch_size=lambda: len(batch.reqs),
            req_to_token_pool=stand.Present("rows", self._log, req_to_token=self._rows),
            token_to_kv_pool_allocator=pool,
            tree_cache=tree,
            hisparse_coordinator=None,
            spec_algorithm=stand.Stand("speculation", self._log, is_none=lambda: True),
        )
        return stand.with_methods_of(
            *(boot.member("scheduler", "Scheduler"), "scheduler", self._log),
            running_batch=batch,
            decode_offload_manager=manager,
            token_to_kv_pool_allocator=pool,
            tree_cache=tree,
            hisparse_coordinator=None,
            enable_overlap=False,
            last_batch=None,
            chunked_req=None,
            forward_ct=1,
            disaggregation_mode=boot.member("utils", "DisaggregationMode").DECODE,
            new_token_ratio_tracker=stand.Present("ratio", self._log, current=0.5),
            disagg_decode_prealloc_queue=stand.Stand("prealloc", self._log),
            metrics_reporter=stand.Stand("metrics", self._log),
        )
