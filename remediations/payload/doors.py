"""Fix 38935: a request that intake has refused ends at the door of both queues.

Intake leaves its verdict in `to_finish` and a stub of one token for a prompt, and queues the request all the
same. Without this the stub is prefilled and handed to decode, which answers from pages that nobody filled.
"""

from __future__ import annotations

from typing import Any

from .requests import forget, is_aborted


def refuse(scheduler: Any, req: Any, re_enters: bool = False) -> bool:
    """Retire a request that intake has refused; True means that it is answered and must not go on.

    `re_enters` is the caller's word that the request was admitted before: its own queue ends it.
    """
    if re_enters or not is_refused(req):
        return False
    _retire(scheduler, req)
    return True


def is_refused(req: Any) -> bool:
    """Whether the request was refused before it got anything.

    An abort alone does not say so: a request that was preempted or retracted while it ran may carry one too,
    and what it holds is released by the queue that it comes back to.
    """
    return is_aborted(req) and not (
        req.is_retracted
        or req.metadata_buffer_index >= 0
        or req.kv.holds_kv
        or req.kv.holds_mamba
        or req.kv.retraction_backup is not None
    )


def _retire(scheduler: Any, req: Any) -> None:
    """Undo what intake has done for the request, then send its own error to the client."""
    session = req.session
    if session is not None and session.streaming:
        # A session counts its request as running until told otherwise, and takes no other one meanwhile.
        session.abort_req()
        req.session = None
    scheduler.beam_coordinator.retire_group(req)
    forget(scheduler, req)
    verdict = req.finished_reason or req.to_finish
    req.time_stats.trace_ctx.abort(abort_info={"reason": verdict.message})
    req.update_finish_state()
    scheduler.output_streamer.stream_output([req], req.return_logprob)
