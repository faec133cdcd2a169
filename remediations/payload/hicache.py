"""HiCache of decode: no rank ends a request on its own (43562), no page is freed under a copy (30899).

Whether a prefix could be restored, and when a copy is over, each rank learns by itself and at its own time.
Here the ranks agree before they act on it. Every rank enters a collective, or none does: whether one is
entered hangs on nothing but what is the same on all of them. A single rank enters none. All of it runs in the
scheduler's thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .agree import reduced
from .state import SUCCESS


def restored(queue: Any, polls: Sequence[Any]) -> list[Any]:
    """What all ranks say of the restore of each request whose transfer is over, and None for the others.

    `polls` are agreed already, so all ranks ask about the same requests. A restore that any rank still works
    on is pending on all; of the rest, one that failed anywhere failed everywhere. So when a request is ended,
    no rank receives pages for it any more, or copies into them.
    """
    agreed: list[Any] = [None] * len(polls)
    over = [place for place, poll in enumerate(polls) if poll == SUCCESS]
    if not over or not queue.scheduler.enable_decode_hicache:
        return agreed
    from sglang.srt.disaggregation.decode_hicache_mixin import HiCacheRestoreResult as Result

    order = (Result.PENDING, Result.FAILED, Result.READY)
    mine = [order.index(queue.queue[place].hicache_restore_status) for place in over]
    for place, least in zip(over, reduced(queue, mine, "MIN"), strict=True):
        agreed[place] = order[least]
    return agreed


def loaded(cache: Any, index: int) -> bool:
    """Whether this rank's copy with the number `index` is over.

    The engine's own question takes finished copies off the books at once, which is a collective; ranks whose
    copy is not over would not enter it.
    """
    controller = cache.cache_controller
    if index < 0 or controller is None:
        return True
    return bool(controller.layer_done_counter.events[index].finish_event.query())


def has_free_load_back_slot(queue: Any, index: int) -> bool:
    """Whether every rank may start another copy; `index` is the number that it would get on this one.

    Finished copies are taken off the books by the scheduler, in every round; with pipeline stages it does
    not, so it is done here, on all ranks.
    """
    cache = queue.tree_cache
    if getattr(cache, "pp_size", 1) != 1:
        cache.loading_check()
    return reduced(queue, [int(loaded(cache, index))], "MIN") == [1]


def keep_lock(entry: Any) -> None:
    """Looking for the prefix again names another node; what the request has locked is still the first one.

    A request that is ended before the restore is committed would otherwise take a lock from pages that others
    hold.
    """
    entry.req.last_node = entry.prefix_match.last_device_node


def drain(scheduler: Any) -> None:
    """Wait until no copy to the host reads pages of this rank any more; after that they may be given back.

    The engine's own check comes first: all ranks enter it, and copies that all have finished leave the books.
    What other ranks have no counterpart of stays on them, and is waited for here all the same.
    """
    manager = scheduler.decode_offload_manager
    if manager is None:
        return
    manager.check_offload_progress()
    told: set[Any] = set()
    for copy in manager.cache_controller.ack_write_queue:
        copy.finish_event.synchronize()
        told.update(copy.node_ids)
    if not told.issuperset(manager.ongoing_offload):
        _wait_for_device()


def _wait_for_device() -> None:
    """A copy of which no event tells ends with the rest of the device's work."""
    torch: Any = importlib.import_module("torch")
    torch.get_device_module().synchronize()
