"""Stand-ins for the parts of the engine that the payload imports while it runs, and for its requests."""

from __future__ import annotations

import enum
from types import ModuleType, SimpleNamespace
from typing import Any

Log = list[tuple[Any, ...]]


class Abort(SimpleNamespace):
    """An end by abort, with its message."""

    def __init__(self, message: str) -> None:
        super().__init__(message=message)


class KVPoll(enum.IntEnum):
    Failed, Bootstrapping, WaitingForInput, Transferring, Success = range(5)


def modules() -> dict[str, ModuleType]:
    """What stands in `sys.modules` for the engine."""
    made: dict[str, ModuleType] = {}

    def module(name: str, **members: Any) -> None:
        for end in (i for i, c in enumerate(name + ".") if c == "."):
            known = made.setdefault(name[:end], ModuleType(name[:end]))
            known.__path__ = []
        made[name].__dict__.update(members)

    def is_aborted(req: Any) -> bool:
        return isinstance(req.to_finish, Abort) or isinstance(req.finished_reason, Abort)

    def runs(pages: Any, targets: Any) -> tuple[list[list[int]], list[list[int]]]:
        here: list[list[int]] = []
        there: list[list[int]] = []
        for a, b in zip(pages, targets, strict=True):
            if here and a == here[-1][-1] + 1 and b == there[-1][-1] + 1:
                here[-1].append(a)
                there[-1].append(b)
            else:
                here.append([a])
                there.append([b])
        return here, there

    module("sglang.srt.disaggregation.utils", is_aborted=is_aborted)
    module("sglang.srt.disaggregation.base.conn", KVPoll=KVPoll)
    module("sglang.srt.disaggregation.common.utils", group_concurrent_contiguous=runs)
    module("sglang.srt.disaggregation.prefill", release_kv_cache=_pages, maybe_release_metadata_buffer=_slot)
    made["sglang.srt.disaggregation"].__dict__["prefill"] = made["sglang.srt.disaggregation.prefill"]
    return made


def request(log: Log, **state: Any) -> Any:
    """A request that holds nothing and goes on, changed by `state`."""
    kv = {one: state.pop(one, off) for one, off in _HOLDINGS.items()}
    req = SimpleNamespace(
        rid="r1",
        session=None,
        is_retracted=False,
        metadata_buffer_index=-1,
        to_finish=None,
        finished_reason=None,
        return_logprob=False,
        pending_bootstrap=False,
        disagg_kv_sender=None,
        kv=SimpleNamespace(**kv),
        log=log,
    )
    req.__dict__.update(state)

    def update_finish_state() -> None:
        if req.finished_reason is None:
            req.finished_reason, req.to_finish = req.to_finish, None

    req.update_finish_state = update_finish_state
    req.finished = lambda: req.finished_reason is not None
    req.time_stats = SimpleNamespace(
        trace_ctx=SimpleNamespace(abort=lambda abort_info: log.append(("trace", abort_info["reason"]))),
        set_completion_time=lambda: log.append(("completed",)),
    )
    return req


_HOLDINGS: dict[str, Any] = {"holds_kv": False, "holds_mamba": False, "retraction_backup": None}


def _pages(req: Any, cache: Any, is_insert: bool = True) -> None:
    req.log.append(("pages", cache, is_insert))
    req.kv.holds_kv = req.kv.holds_mamba = False


def _slot(req: Any, allocator: Any) -> None:
    if req.metadata_buffer_index >= 0:
        req.log.append(("slot", allocator, req.metadata_buffer_index))
        req.metadata_buffer_index = -1
