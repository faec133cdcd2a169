"""What the doors and the results of prefill both ask of a request and do with it."""

from __future__ import annotations

from typing import Any


def is_aborted(req: Any) -> bool:
    """Whether the request ends with an abort, announced or done."""
    from sglang.srt.disaggregation.utils import is_aborted as aborted

    return bool(aborted(req))


def forget(scheduler: Any, req: Any) -> None:
    """Take back what the prefix cache has begun for the request (a read from storage, its retries)."""
    release = getattr(scheduler, "_release_aborted_request", None)
    if release is not None:
        release(req)
    elif scheduler.enable_hicache_storage:
        scheduler.tree_cache.release_aborted_request(req.rid)
