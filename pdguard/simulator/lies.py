"""Engines that do not answer honestly."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pdguard.simulator.auth import UNAUTHORIZED
from pdguard.simulator.messages import Answer, Request, text_answer
from pdguard.simulator.server import App, Reply, Work
from pdguard.simulator.spec import EngineSpec, Lie

_JSON = ((b"content-type", b"application/json"),)
_HTML = b"<!doctype html><html><head><title>Sign in</title></head><body><h1>Proxy</h1></body></html>"
_BLOCK = b" " * 65536
_TRICKLE_SECONDS = 0.02


class LyingApp:
    """An engine behind a fault: the honest answer is made, then spoilt."""

    def __init__(self, spec: EngineSpec, honest: App) -> None:
        self._spec = spec
        self._honest = honest

    def handle(self, request: Request) -> Answer | Work:
        """The fault in place of, or on top of, the engine's answer."""
        lie = self._spec.lie
        if lie is Lie.UNAUTHORIZED:
            return UNAUTHORIZED
        if lie is Lie.SERVER_ERROR:
            return text_answer(500, "Internal Server Error")
        if lie is Lie.HTML:
            return Answer(200, _HTML, ((b"content-type", b"text/html; charset=utf-8"),))
        if lie is Lie.REDIRECT_LOOP:
            return Answer(307, b"", ((b"location", request.path.encode("latin-1")),))
        if lie is Lie.ENDLESS:
            return self._endless
        if lie is Lie.TRICKLE:
            return self._trickle
        if lie is Lie.HUGE:
            return self._huge
        honest = self._honest.handle(request)
        if lie is Lie.SLOW:
            return _slow(honest, self._spec.slow_seconds)
        return _spoil(honest, lie) if isinstance(honest, Answer) else honest

    async def _endless(self, reply: Reply) -> Answer | None:
        reply.raw(
            b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 65536\r\n\r\n{"status":'
        )
        await asyncio.Event().wait()
        return None

    async def _trickle(self, reply: Reply) -> Answer | None:
        reply.start(200, _JSON)
        await reply.write(b"{")
        while True:
            await asyncio.sleep(_TRICKLE_SECONDS)
            await reply.write(b" ")

    async def _huge(self, reply: Reply) -> Answer | None:
        reply.start(200, _JSON)
        await reply.write(b"{")
        for _ in range(self._spec.huge_bytes // len(_BLOCK)):
            await reply.write(_BLOCK)
            await asyncio.sleep(0)
        await reply.write(b"}")
        return None


def _slow(honest: Answer | Work, seconds: float) -> Work:
    async def work(reply: Reply) -> Answer | None:
        await asyncio.sleep(seconds)
        return honest if isinstance(honest, Answer) else await honest(reply)

    return work


def _spoil(answer: Answer, lie: Lie) -> Answer:
    try:
        value = json.loads(answer.body)
    except ValueError:
        return answer
    if lie is Lie.TRUNCATED_JSON:
        return Answer(answer.status, answer.body[: len(answer.body) // 2])
    if lie is Lie.WRONG_TYPE:
        value = {"items": value} if isinstance(value, list) else [value]
    else:
        value = _rewrite(value, lie)
    return Answer(answer.status, json.dumps(value, separators=(",", ":")).encode())


def _rewrite(value: Any, lie: Lie) -> Any:
    if isinstance(value, dict):
        kept = list(value.items())[::2] if lie is Lie.MISSING_KEYS else value.items()
        return {key: _rewrite(item, lie) for key, item in kept}
    if isinstance(value, list):
        return [_rewrite(item, lie) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if lie is Lie.NUMBERS_AS_STRINGS:
            return str(value)
        if lie is Lie.NAN:
            return float("nan")
    return value
