"""The bodies of generation answers and errors, as recorded; tokens are synthetic, one printable sign each."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pdguard.simulator.messages import Answer, json_answer
from pdguard.simulator.versions import at_least

Kind = Literal["ok", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one half of a request ended: tokens, a refusal (400) or a failure (500)."""

    kind: Kind
    prompt_tokens: int
    tokens: tuple[int, ...] = ()
    message: str = ""

    @property
    def status(self) -> int:
        """The HTTP status of an answer that is not streamed."""
        return {"ok": 200, "refused": 400, "failed": 500}[self.kind]


@dataclass(slots=True)
class Stamp:
    """Identity and times of one request."""

    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    received: float = field(default_factory=time.time)
    begun: float = field(default_factory=time.perf_counter)


def over_limit(tokens: int, limit: int) -> str:
    """The scheduler's refusal of a prompt over the admission limit."""
    return (
        f"Input length ({tokens} tokens) exceeds the maximum allowed length ({limit} tokens). "
        "Use a shorter input or enable --allow-auto-truncate."
    )


def over_context(tokens: int, context: int) -> str:
    """The tokenizer's refusal of a prompt over the context length."""
    return f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."


def over_total(tokens: int, new: int, context: int) -> str:
    """The tokenizer's refusal of prompt plus completion over the context length."""
    return (
        f"Requested token count exceeds the model's maximum context length of {context} tokens. "
        f"You requested a total of {tokens + new} tokens: {tokens} tokens from the input messages and "
        f"{new} tokens for the completion. Please reduce the number of tokens in the input messages or "
        "the completion to fit within the limit."
    )


def decode_timeout(rid: str, room: int, seconds: float) -> str:
    """What decode says when no KV arrived within its waiting timeout."""
    return (
        f"Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' "
        f"decode_req.req.bootstrap_room={room} with exception KVTransferError(bootstrap_room={room}): "
        f"Request {room} timed out after {float(seconds)}s in KVPoll.WaitingForInput"
    )


def prefill_failure(rid: str, room: int, stage: str, reason: str) -> str:
    """What prefill says when a request ends in its bootstrap or transfer queue."""
    return (
        f"Prefill {stage} failed for request rank=0 req.rid='{rid}' req.bootstrap_room={room} "
        f"with exception KVTransferError(bootstrap_room={room}): {reason}"
    )


def bootstrap_timeout(room: int, seconds: float) -> str:
    """The reason when no decode came within the bootstrap timeout."""
    return f"Request {room} timed out after {float(seconds)}s in KVPoll.Bootstrapping"


def room_conflict(room: int, rank: int, implied: int) -> str:
    """The reason when a room's number belongs to another data-parallel rank."""
    return (
        f"follow_bootstrap_room conflict: dispatched to dp_rank {rank} but bootstrap_room {room} implies "
        f"dp_rank {implied}. Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow mixed routing."
    )


def text_of(tokens: Sequence[int]) -> str:
    """The text of synthetic tokens."""
    return "".join(chr(33 + token) for token in tokens)


def meta_info(
    version: str, role: str, stamp: Stamp, outcome: Outcome, count: int, *, streamed: bool = False
) -> dict[str, Any]:
    """The `meta_info` of /generate after `count` tokens."""
    last = count >= len(outcome.tokens)
    now, elapsed = time.time(), time.perf_counter() - stamp.begun
    ok = outcome.kind == "ok"
    reason: dict[str, Any] | None = {"type": "length", "length": 0 if role == "prefill" else count}
    if not ok:
        refused = outcome.kind == "refused"
        reason = {"type": "abort", "message": outcome.message, "status_code": outcome.status}
        reason["err_type"] = "BadRequestError" if refused else None
    meta: dict[str, Any] = {"id": stamp.rid, "finish_reason": reason if last else None}
    meta["prompt_tokens"] = outcome.prompt_tokens
    if not at_least(version, "0.5.19"):
        return meta | {"completion_tokens": count, "cached_tokens": 0, "e2e_latency": elapsed}
    meta |= {"weight_version": "default", "num_retractions": 0}
    if at_least(version, "0.5.22") and role == "prefill" and ok:
        meta |= {"storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0}
    if ok:
        meta["forward_entry_time"] = now
        if role == "prefill":
            meta["prefill_finished_time"] = now
    meta |= {"queue_time": 0.0, "reasoning_tokens": 0, "completion_tokens": count, "cached_tokens": 0}
    if last:
        meta["weight_versions"] = [{"version": "default", "start": 0, "end": count}]
    meta |= {"cached_tokens_details": None, "dp_rank": None}
    if last:
        meta |= {"e2e_latency": elapsed, "request_received_ts": stamp.received}
        if at_least(version, "0.5.21"):
            meta["first_token_latency"] = elapsed
        meta["api_server_dispatch_finish_ts"] = stamp.received
        if streamed and count > 1:
            meta["response_sent_to_client_ts"] = now
        meta["request_finished_ts"] = now
        if ok and role != "prefill" and (streamed or not at_least(version, "0.5.22")):
            meta["decode_throughput"] = 1000.0
    if last or count == 1:
        meta.setdefault("response_sent_to_client_ts", now)
    return meta


def generate_answer(version: str, role: str, stamp: Stamp, outcome: Outcome) -> Answer:
    """A whole answer of /generate."""
    if outcome.kind == "refused":
        return json_answer(400, {"error": {"message": outcome.message}})
    if outcome.kind == "failed":
        error = {"object": "error", "message": outcome.message, "type": "500", "param": None, "code": 500}
        return json_answer(500, error)
    meta = meta_info(version, role, stamp, outcome, len(outcome.tokens))
    return json_answer(
        200, {"text": text_of(outcome.tokens), "output_ids": outcome.tokens, "meta_info": meta}
    )


def openai_answer(model: str, stamp: Stamp, outcome: Outcome, *, chat: bool) -> Answer:
    """A whole answer of /v1/completions or /v1/chat/completions."""
    if outcome.kind != "ok":
        name = "BadRequestError" if outcome.kind == "refused" else "InternalServerError"
        error = {"object": "error", "message": outcome.message, "type": name, "param": None}
        return json_answer(outcome.status, error | {"code": outcome.status})
    count, text = len(outcome.tokens), text_of(outcome.tokens)
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": text, **_EMPTY_PARTS}
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": "length", "matched_stop": None}
    versions = [{"version": "default", "start": 0, "end": count}]
    body: dict[str, Any] = {"id": stamp.rid, "object": _OBJECTS[chat][0], "created": int(stamp.received)}
    body |= {"model": model, "choices": [choice], "usage": _usage(outcome)}
    body["metadata"] = {"weight_version": "default", "weight_versions": versions}
    return json_answer(200, body)


_EMPTY_PARTS = {"reasoning_content": None, "tool_calls": None}
_OBJECTS = {False: ("text_completion", "text_completion"), True: ("chat.completion", "chat.completion.chunk")}


def _usage(outcome: Outcome) -> dict[str, int | None]:
    count = len(outcome.tokens)
    return {
        "prompt_tokens": outcome.prompt_tokens,
        "total_tokens": outcome.prompt_tokens + count,
        "completion_tokens": count,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def event(value: Any, *, compact: bool = True) -> bytes:
    """One server-sent event."""
    separators = (",", ":") if compact else (", ", ": ")
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=separators).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def generate_event(version: str, role: str, stamp: Stamp, outcome: Outcome, count: int) -> bytes:
    """The event of /generate after `count` tokens; text and ids are cumulative."""
    tokens = outcome.tokens[:count]
    meta = meta_info(version, role, stamp, outcome, count, streamed=True)
    return event({"text": text_of(tokens), "output_ids": tokens, "meta_info": meta})


def openai_event(model: str, stamp: Stamp, outcome: Outcome, count: int, *, chat: bool) -> bytes:
    """What is sent with token number `count`; the text is that token alone. Chat opens with the role."""
    if outcome.kind != "ok":
        name = "BAD_REQUEST" if outcome.kind == "refused" else "INTERNAL_SERVER_ERROR"
        error = {"object": "error", "message": outcome.message, "type": name, "param": None}
        return event({"error": error | {"code": outcome.status}}, compact=False)
    finished = "length" if count >= len(outcome.tokens) else None
    text = text_of(outcome.tokens[count - 1 : count])
    body: dict[str, Any] = {"id": stamp.rid, "object": _OBJECTS[chat][1], "created": int(stamp.received)}
    body["model"] = model
    if not chat:
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": finished}
        return event(body | {"choices": [choice | {"matched_stop": None}], "usage": None})
    deltas: list[tuple[dict[str, Any], str | None]] = [({"content": text}, None)]
    if count == 1:
        deltas.insert(0, ({"role": "assistant", "content": ""}, None))
    if finished is not None:
        deltas.append(({}, finished))
    return b"".join(
        event(body | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        for delta, reason in deltas
    )


def usage_event(model: str, stamp: Stamp, outcome: Outcome, *, chat: bool) -> bytes:
    """The event with the counts, which a client has to ask for; no choices stand in it."""
    body = {"id": stamp.rid, "object": _OBJECTS[chat][1], "created": int(stamp.received), "model": model}
    return event(body | {"choices": [], "usage": _usage(outcome)})
