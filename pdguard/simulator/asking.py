"""Reading a generation request: how long is the prompt, which room, streamed or not. No text is kept."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pdguard.simulator import bodies
from pdguard.simulator.messages import Answer, Request, json_answer
from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.versions import at_least

#: The host name that asks for a handoff without a prefill, as the engine's own health probe does.
FAKE_HOST = "2.2.2.2"
MAX_NEW_TOKENS = 4096
_DEFAULT_NEW = {"/generate": 128, "/v1/completions": 16}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, without its content: length and digest of the prompt."""

    path: str
    length: int
    digest: bytes
    new: int
    stream: bool
    room: int | None
    rank: int
    rid: str | None
    model: str

    @property
    def chat(self) -> bool:
        """Whether the OpenAI form was used."""
        return self.path != "/generate"


def read(spec: EngineSpec, request: Request) -> Ask | Answer:
    """The request, or the answer that refuses it before any scheduler sees it."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return _bad(spec, request.path, "The body is not JSON.")
    if not isinstance(body, dict):
        return _bad(spec, request.path, "The body is not an object.")
    prompt = (
        body.get("prompt") if request.path == "/v1/completions" else body.get("input_ids", body.get("text"))
    )
    if isinstance(prompt, str):
        raw, length = prompt.encode(), len(prompt.encode())
    elif isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        raw, length = b",".join(b"%d" % token for token in prompt), len(prompt)
    else:
        return _bad(spec, request.path, "One prompt is needed, as text or as a list of token ids.")
    return _checked(spec, request.path, body, length, hashlib.blake2b(raw, digest_size=16).digest())


def _checked(spec: EngineSpec, path: str, body: dict[str, Any], length: int, digest: bytes) -> Ask | Answer:
    params = body if path == "/v1/completions" else body.get("sampling_params") or {}
    asked = params.get("max_tokens" if path == "/v1/completions" else "max_new_tokens")
    stream = bool(body.get("stream"))
    context = spec.context_length
    message = ""
    if length >= context:
        if spec.allow_auto_truncate:
            length = context - 1
        else:
            message = bodies.over_context(length, context)
    over = 0 if at_least(spec.version, "0.5.18") else 1
    if not message and isinstance(asked, int) and length + asked + over > context:
        if spec.allow_auto_truncate:
            asked = context - length
        else:
            message = bodies.over_total(length, asked, context)
    if message:
        return _context_error(path, message, stream=stream)
    new = asked if isinstance(asked, int) else _DEFAULT_NEW[path]
    room, rid = body.get("bootstrap_room"), body.get("rid")
    if body.get("bootstrap_host") == FAKE_HOST:
        room = 0
    return Ask(
        path=path,
        length=length,
        digest=digest,
        new=max(0, min(new, MAX_NEW_TOKENS, context - length)),
        stream=stream,
        room=room if isinstance(room, int) else None,
        rank=int(body.get("routed_dp_rank") or 0) % spec.dp,
        rid=rid if isinstance(rid, str) else None,
        model=str(body.get("model", "model")),
    )


def _bad(spec: EngineSpec, path: str, message: str) -> Answer:
    if path == "/v1/completions":
        return json_answer(
            400,
            {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400},
        )
    strict = at_least(spec.version, "0.5.23")
    return json_answer(400, {"error": message if strict else {"message": message}})


def _context_error(path: str, message: str, *, stream: bool) -> Answer:
    if path == "/v1/completions":
        return json_answer(
            400,
            {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400},
        )
    if not stream:
        return json_answer(400, {"error": {"message": message}})
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    return Answer(200, bodies.event({"error": error}) + bodies.DONE, ((b"content-type", SSE),))


SSE = b"text/event-stream; charset=utf-8"
