"""Fix 36988: the result of a prefill pass is dropped if its request was aborted while the pass ran.

Without this the aborted request is handed on: its last chunk goes to decode, which takes the answer for good.
"""

from __future__ import annotations

import logging
from typing import Any

from .requests import forget, is_aborted

logger = logging.getLogger(__name__)


def drop(scheduler: Any, req: Any, still_chunking: bool = False) -> bool:
    """Drop the result of an aborted request; True means that nothing of it may be sent or queued.

    `still_chunking`: a later chunk has been launched, whose result releases what the request holds.
    """
    if not is_aborted(req):
        return False
    scheduler.clear_pending_chunk_send(req)
    # One that holds nothing was retired and answered by whoever aborted it.
    if not still_chunking and _holds(req):
        _release(scheduler, req)
        req.time_stats.set_completion_time()
        scheduler.output_streamer.stream_output([req], req.return_logprob)
    return True


def _holds(req: Any) -> bool:
    return bool(req.kv.holds_kv or req.kv.holds_mamba or req.metadata_buffer_index >= 0)


def _release(scheduler: Any, req: Any) -> None:
    """Give back everything that the request holds, once, and keep its pages out of the prefix cache."""
    from sglang.srt.disaggregation import prefill

    if req.disagg_kv_sender is not None:
        _abort(req.disagg_kv_sender, req.rid)
    if req.to_finish is not None and not req.finished():
        req.update_finish_state()
    prefill.maybe_release_metadata_buffer(req, scheduler.req_to_metadata_buffer_idx_allocator)
    req.pending_bootstrap = False
    forget(scheduler, req)
    if req.kv.holds_kv or req.kv.holds_mamba:
        prefill.release_kv_cache(req, scheduler.tree_cache, is_insert=False)


def _abort(sender: Any, rid: str) -> None:
    """Close the transfer. What goes wrong here must not keep the pages: it is logged."""
    try:
        manager, room = getattr(sender, "kv_mgr", None), getattr(sender, "bootstrap_room", None)
        going_on = _is_going_on(manager, room)
        sender.abort()
        if going_on:
            _tell_decode(manager, room)
    except Exception:
        logger.exception("The transfer of the aborted request %s was not closed.", rid)


def _is_going_on(manager: Any, room: Any) -> bool:
    """Whether decode waits for this room and can be told that it will not come (Mooncake can)."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    if not hasattr(manager, "sync_status_to_decode_endpoint") or room not in manager.request_status:
        return False
    return bool(manager.check_status(room) != KVPoll.Failed)


def _tell_decode(manager: Any, room: Any) -> None:
    """Spare decode its waiting timeout. It may reuse its pages at once, so never while a write is under way.

    The room is marked as failed by now, and a worker counts a chunk before it looks at that mark: a count of
    zero means that no write has been begun and none will be.
    """
    from sglang.srt.disaggregation.base.conn import KVPoll

    if manager._staging_outstanding.get(room, 0) > 0:
        return
    width = manager.attn_cp_size
    rank = (manager.attn_tp_rank * manager.pp_size + manager.pp_rank) * width + manager.attn_cp_rank
    for info in list(manager.transfer_infos.get(room, {}).values()):
        if not info.is_dummy:
            manager.sync_status_to_decode_endpoint(info.endpoint, info.dst_port, room, KVPoll.Failed, rank)
