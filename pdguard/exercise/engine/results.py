"""The result of a forward pass of prefill for a request that was aborted meanwhile."""

from __future__ import annotations

import importlib
from typing import Any

from pdguard.exercise.engine import boot
from pdguard.exercise.engine.stand import (
    Log,
    Stand,
    calls,
    configure,
    one_rank,
    rejected,
    request,
    with_methods_of,
)

_WATCHED = ("release_kv_cache", "maybe_cache_unfinished_req", "should_force_retry")
_QUEUE = "disagg_prefill_inflight_queue"


def prefill(case: str) -> dict[str, Any]:
    """Cases: valid, aborted (last chunk), aborted-twice (a late second result), aborted-middle-chunk."""
    configure(disaggregation_mode="prefill")
    one_rank()
    log: Log = []
    module = boot.part("prefill")
    for name in _WATCHED:
        if hasattr(module, name):
            setattr(module, name, _watch(name, log))
    if not hasattr(module, "release_kv_cache"):
        raise boot.Unavailable("prefill has no release_kv_cache to watch")
    allocator = boot.member("utils", "ReqToMetadataIdxAllocator")(4)
    index = allocator.alloc()
    free_before = allocator.available_size()
    scheduler = with_methods_of(
        boot.member("scheduler", "Scheduler"),
        "scheduler",
        log,
        req_to_metadata_buffer_idx_allocator=allocator,
        disagg_prefill_inflight_queue=[],
        send_kv_chunk=Stand("send_kv_chunk", log),
        checkpoint_disagg_prefill=Stand("checkpoint_disagg_prefill", log),
        optimistic_release_and_requeue=Stand("requeue", log),
        maybe_send_health_check_signal=Stand("health", log),
    )
    wanted = _prepare(case, index, log)
    for _ in range(2 if case == "aborted-twice" else 1):
        _process(scheduler, wanted)
    released = sum(
        1 for arguments, _ in calls(log, "release_kv_cache") if arguments and arguments[0] is wanted
    )
    return _judge(
        case,
        {
            "appended": getattr(scheduler, _QUEUE).count(wanted),
            "sent": len(calls(log, "send_kv_chunk")),
            "requeued": len(calls(log, "requeue")),
            "released": released,
            "metadata freed": allocator.available_size() - free_before,
            "sender aborted": len(calls(log, "sender.abort")),
            "answered": any(wanted in arguments[0] for arguments, _ in calls(log, "stream_output")),
        },
    )


def _watch(name: str, log: Log) -> Any:
    def called(*arguments: Any, **named: Any) -> bool:
        log.append((name, arguments, named))
        if name == "release_kv_cache":
            arguments[0].kv.req_pool_idx = None  # what the real one leaves behind
        return False

    return called


def _prepare(case: str, index: int, log: Log) -> Any:
    made = request("valid", [1, 2, 3], 7) if case == "valid" else rejected(case, 7)
    made.metadata_buffer_index = index
    made.kv.req_pool_idx = 1
    made.disagg_kv_sender = Stand("sender", log)
    made.pending_bootstrap = case == "aborted-middle-chunk"
    made.inflight_middle_chunks = 1 if case == "aborted-middle-chunk" else 0
    made.tmp_end_idx = 1
    return made


def _process(scheduler: Any, wanted: Any) -> None:
    torch: Any = importlib.import_module("torch")
    log: Log = []
    nothing = dict.fromkeys(
        (
            *("logits_output", "extend_input_len_per_req", "extend_logprob_start_len_per_req", "copy_done"),
            *("auxiliary_host_output", "routed_experts_output", "indexer_topk_output", "next_draft_input"),
        )
    )
    result = Stand("result", log, next_token_ids=torch.tensor([5]), can_run_cuda_graph=False, **nothing)
    batch = Stand("batch", log, reqs=[wanted], spec_info=None)
    scheduler.process_batch_result_disagg_prefill(batch, result)


def _judge(case: str, saw: dict[str, Any]) -> dict[str, Any]:
    if case == "valid":
        good = saw["appended"] == 1 and saw["sent"] == 1 and saw["released"] == 0
        word, why = (
            ("queued", "handed to decode once") if good else ("lost", "a good result is not handed on once")
        )
        return {"outcome": word, "state": "pass" if good else "fail", "why": why, "saw": saw}
    if saw["appended"] or saw["sent"] or saw["requeued"]:
        why = "the aborted request goes on: " + ", ".join(
            word for word in ("appended", "sent", "requeued") if saw[word]
        )
        return {"outcome": "vulnerable", "state": "fail", "why": why, "saw": saw}
    if saw["released"] == 1 and saw["metadata freed"] == 1:
        outcome, state, why = "fixed", "pass", "retired, everything released exactly once"
        if not saw["answered"]:
            outcome, state, why = "silent", "fail", "retired without an answer"
        return {"outcome": outcome, "state": state, "why": why, "saw": saw}
    why = f"released {saw['released']} times, metadata freed {saw['metadata freed']} times"
    return {"outcome": "released wrongly", "state": "fail", "why": why, "saw": saw}
