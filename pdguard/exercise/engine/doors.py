"""The two doors: what becomes of a request that intake has refused, and of those that must pass."""

from __future__ import annotations

from typing import Any

from pdguard.exercise.engine import boot
from pdguard.exercise.engine.stand import (
    Log,
    Present,
    Stand,
    bare,
    calls,
    configure,
    one_rank,
    rejected,
    request,
    with_methods_of,
)

_ANSWERS = ("stream_output", "send_output", "send_abort_output")
_SIZE = 1 << 20

ADMITTED = ("valid", "metadata-held", "kv-held", "preempted", "retracted", "rebootstrap")
"""Cases that must go on; all but the first carry an abort, and something that their queue has to release."""


def _prepare(case: str) -> Any:
    """The request of a case."""
    if case == "valid":
        return request("valid", [1, 2, 3], 7)
    made = rejected(case, 7)
    if case == "metadata-held":
        made.metadata_buffer_index = 3
    elif case == "kv-held":
        made.kv.req_pool_idx = 3
    elif case in ("preempted", "retracted"):
        made.is_retracted = True
    elif case == "streaming-session":
        made.session = Present("session", [], streaming=True)
    return made


def _endpoint(module: Any, made: list[Any], log: Log) -> None:
    """Count the senders or receivers that the door creates, in place of creating real ones."""

    def create(*_arguments: Any, **named: Any) -> Any:
        made.append(named)
        return Stand("endpoint", log)

    if not hasattr(module, "get_kv_class"):
        raise boot.Unavailable("the door has no get_kv_class to watch")
    module.get_kv_class = lambda *_arguments: create


def _answered(log: Log, wanted: Any) -> bool:
    for ending in _ANSWERS:
        for arguments, _ in calls(log, ending):
            for argument in arguments:
                if argument is wanted or (isinstance(argument, list) and wanted in argument):
                    return True
    return False


def _judge(case: str, queued: bool, made: list[Any], answered: bool) -> dict[str, Any]:
    saw = {"queued": queued, "created": len(made), "answered": answered}
    if case in ADMITTED:
        state = "pass" if queued else "fail"
        word, why = (
            ("queued", "it goes on") if queued else ("retired", "the door drops what it must let pass")
        )
        return {"outcome": word, "state": state, "why": why, "saw": saw}
    if queued or made:
        why = "the refused request goes on into the handoff with its stub prompt"
        return {"outcome": "vulnerable", "state": "fail", "why": why, "saw": saw}
    if not answered:
        return {"outcome": "silent", "state": "fail", "why": "dropped without an answer", "saw": saw}
    return {"outcome": "fixed", "state": "pass", "why": "retired and answered at the door", "saw": saw}


def _session(result: dict[str, Any], wanted: Any, session: Any) -> dict[str, Any]:
    """A streaming session that stays attached to a retired request refuses everything after it."""
    detached = wanted.session is None and bool(calls(session._log, "abort_req"))
    result["saw"]["session detached"] = detached
    if result["outcome"] == "fixed" and not detached:
        result.update(
            outcome="session kept", state="fail", why="retired, but its streaming session is not detached"
        )
    return result


def prefill(case: str) -> dict[str, Any]:
    """One request at the door of prefill."""
    configure(disaggregation_mode="prefill")
    one_rank()
    log: Log = []
    made: list[Any] = []
    module = boot.part("prefill")
    _endpoint(module, made, log)
    scheduler = with_methods_of(boot.member("scheduler", "Scheduler"), "scheduler", log)
    queue = bare(
        boot.member("prefill", "PrefillBootstrapQueue"),
        log,
        queue=[],
        scheduler=scheduler,
        max_total_num_tokens=_SIZE,
        max_input_len=_SIZE,
    )
    wanted = _prepare(case)
    session = wanted.session
    queue.add(wanted, 8)
    result = _judge(case, wanted in queue.queue, made, _answered(log, wanted))
    return _session(result, wanted, session) if case == "streaming-session" else result


def decode(case: str) -> dict[str, Any]:
    """One request at the door of decode."""
    configure(disaggregation_mode="decode")
    one_rank()
    log: Log = []
    made: list[Any] = []
    module = boot.part("decode")
    _endpoint(module, made, log)
    scheduler = with_methods_of(boot.member("scheduler", "Scheduler"), "scheduler", log)
    manager = Stand("kv_manager", log, prefill_info_table={})
    queue = bare(
        boot.member("decode", "DecodePreallocQueue"),
        log,
        queue=[],
        retracted_queue=[],
        pending_reqs=[],
        scheduler=scheduler,
        kv_manager=manager,
        max_total_num_tokens=_SIZE,
        num_reserved_decode_tokens=16,
    )
    wanted = _prepare(case)
    session = wanted.session
    flags = {"retracted": {"is_retracted": True}, "rebootstrap": {"is_rebootstrap": True}}.get(case, {})
    queue.add(wanted, **flags)
    everywhere = [*queue.retracted_queue, *(entry.req for entry in (*queue.queue, *queue.pending_reqs))]
    result = _judge(case, wanted in everywhere, made, _answered(log, wanted))
    return _session(result, wanted, session) if case == "streaming-session" else result
