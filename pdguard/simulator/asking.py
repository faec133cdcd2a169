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
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_DEFAULT_NEW = {"/generate": 128, COMPLETIONS: 16, CHAT: 128}
_TEMPLATE = b"<|user|>\n%s\n<|reply|>"


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
    usage: bool = False
    """Whether a stream ends with an event that counts tokens."""

    @property
    def openai(self) -> bool:
        """Whether an OpenAI form was used."""
        return self.path != "/generate"

    @property
    def chat(self) -> bool:
        """Whether it was the one with messages."""
        return self.path == CHAT


def read(spec: EngineSpec, request: Request) -> Ask | Answer:
    """The request, or the answer that refuses it before any scheduler sees it."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return bad(spec, request.path, "The body is not JSON.")
    if not isinstance(body, dict):
        return bad(spec, request.path, "The body is not an object.")
    prompt = _prompt(request.path, body)
    if request.path == CHAT and not spec.chat_template:
        return bad(spec, CHAT, "There is no chat template, so messages cannot be turned into a prompt.")
    if isinstance(prompt, str):
        raw, length = prompt.encode(), len(prompt.encode())
    elif isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        raw, length = b",".join(b"%d" % token for token in prompt), len(prompt)
    else:
        return bad(spec, request.path, "One prompt is needed, as text or as a list of token ids.")
    return _checked(spec, request.path, body, length, hashlib.blake2b(raw, digest_size=16).digest())


def _prompt(path: str, body: dict[str, Any]) -> object:
    if path == COMPLETIONS:
        return body.get("prompt")
    if path != CHAT:
        return body.get("input_ids", body.get("text"))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    contents = [one.get("content") if isinstance(one, dict) else None for one in messages]
    if not all(isinstance(content, str) for content in contents):
        return None
    return "".join((_TEMPLATE % str(content).encode()).decode() for content in contents)


def _checked(spec: EngineSpec, path: str, body: dict[str, Any], length: int, digest: bytes) -> Ask | Answer:
    if path == "/generate":
        asked = (body.get("sampling_params") or {}).get("max_new_tokens")
    else:
        asked = body.get("max_tokens", body.get("max_completion_tokens"))
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
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def bad(spec: EngineSpec, path: str, message: str) -> Answer:
    """The 400 for a request that no scheduler sees."""
    if path != "/generate":
        return json_answer(
            400,
            {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400},
        )
    strict = at_least(spec.version, "0.5.23")
    return json_answer(400, {"error": message if strict else {"message": message}})


def _context_error(path: str, message: str, *, stream: bool) -> Answer:
    if path != "/generate":
        return json_answer(
            400,
            {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400},
        )
    if not stream:
        return json_answer(400, {"error": {"message": message}})
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    return Answer(200, bodies.event({"error": error}) + bodies.DONE, ((b"content-type", SSE),))


SSE = b"text/event-stream; charset=utf-8"
