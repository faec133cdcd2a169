"""A simulated router: its own answers, and requests sent to both halves of a pair.

sglang-router 0.3.2 and smg before 1.12 wait for both halves, whatever the first one said, and try again
on a 5xx. smg from 1.12 answers a failed prefill at once and drops the decode half; what it does when only
decode refuses was not measured, here it waits as the others do.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx

from pdguard.simulator import router_shapes as shapes
from pdguard.simulator.answers import model_info
from pdguard.simulator.messages import Answer, Request, json_answer, text_answer
from pdguard.simulator.pairing import Background
from pdguard.simulator.router_shapes import Upstream
from pdguard.simulator.server import Reply, Work
from pdguard.simulator.spec import RouterSpec

__all__ = ["RouterApp", "Upstream"]

_SSE = ((b"content-type", b"text/event-stream"),)
_BACKOFF = 1.5
_FORWARDED = frozenset({"/generate", "/v1/completions", "/v1/chat/completions"})
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    404: "not_found",
    500: "internal_error",
    502: "bad_gateway",
}
_LINGER_CHUNKS = 3


@dataclass(frozen=True, slots=True)
class _Failed:
    """A half that did not succeed."""

    leg: str
    status: int
    message: str

    def answer(self) -> Answer:
        phrase = HTTPStatus(self.status).phrase
        code = f"{self.leg}_{_CODES.get(self.status, 'error')}"
        return json_answer(self.status, {"error": {"type": phrase, "code": code, "message": self.message}})


class RouterApp:
    """Answers the HTTP port of one router."""

    def __init__(self, spec: RouterSpec, upstreams: Sequence[Upstream], background: Background) -> None:
        self.spec = spec
        self.attempts: Counter[str] = Counter()
        self._upstreams = upstreams
        self._background = background
        self._prefills = itertools.cycle([one for one in upstreams if one.spec.role == "prefill"] or [None])
        self._decodes = itertools.cycle([one for one in upstreams if one.spec.role == "decode"] or [None])
        self._client: httpx.AsyncClient | None = None

    async def stop(self) -> None:
        """Close the connections to the engines."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def handle(self, request: Request) -> Answer | Work:
        """Answer one request."""
        path = request.path
        if request.method == "POST" and path in _FORWARDED:
            return partial(self._forward, request)
        if request.method != "GET":
            return self._unknown(request)
        answer = self._own(path)
        return self._unknown(request) if answer is None else answer

    def _own(self, path: str) -> Answer | None:
        ups, smg = self._upstreams, self.spec.kind == "smg"
        if path in ("/health", "/liveness"):
            return text_answer(200, "OK")
        if path == "/readiness":
            ready = {"status": "ready", "healthy_workers": len(ups), "total_workers": len(ups)}
            return json_answer(200, ready)
        if path == "/workers":
            return json_answer(200, shapes.smg_workers(ups) if smg else shapes.sglang_workers(ups))
        if path == "/get_loads":
            return json_answer(
                200, shapes.smg_loads(ups, self.spec.version) if smg else shapes.sglang_loads(ups)
            )
        if path == "/get_server_info" and not smg:
            own = {"router_manager": True, "routers_count": 1, "workers_count": len(ups)}
            return text_answer(200, json.dumps(own, separators=(",", ":")))
        if path == "/v1/models":
            ids = sorted({one.spec.model for one in ups})
            cards = [{"id": ident, "object": "model", "owned_by": "local"} for ident in ids]
            return text_answer(200, json.dumps({"object": "list", "data": cards}, separators=(",", ":")))
        if path == "/get_model_info" and ups:
            first = next((one for one in ups if one.spec.role == "prefill"), ups[0])
            return json_answer(200, model_info(first.spec))
        return None

    def _unknown(self, request: Request) -> Answer:
        message = f"Invalid URL ({request.method} {request.path})"
        error = {"type": "invalid_request_error", "code": "unknown_url", "message": message, "param": None}
        return json_answer(404, {"error": error})

    async def _forward(self, request: Request, reply: Reply) -> Answer | None:
        try:
            body = json.loads(request.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return text_answer(400, "Failed to parse the request body as JSON")
        if request.path == "/v1/completions" and not isinstance(body.get("prompt"), str):
            return text_answer(422, "prompt: data did not match any variant of untagged enum StringOrArray")
        if body.get("stream"):
            return await self._stream(request, body, reply)
        pause = self.spec.retry_seconds
        for attempt in itertools.count(1):
            result = await self._attempt(request, body)
            if not isinstance(result, _Failed):
                return Answer(200, result.content)
            if result.status < 500 or attempt >= self.spec.tries:
                return result.answer()
            await asyncio.sleep(pause)
            pause *= _BACKOFF
        raise AssertionError

    def _legs(self, request: Request, body: dict[str, Any]) -> list[tuple[str, httpx.Request]] | _Failed:
        """The two requests of a fresh pair and room."""
        prefill, decode = next(self._prefills), next(self._decodes)
        if prefill is None or decode is None:
            return _Failed("prefill" if prefill is None else "decode", 503, "No available workers")
        if self._client is None:
            # plain HTTP on loopback: an empty TLS context saves reading the system's certificates
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._client = httpx.AsyncClient(
                verify=context, timeout=httpx.Timeout(None), limits=httpx.Limits(), trust_env=False
            )
        injected = {
            "bootstrap_host": urlsplit(prefill.url).hostname,
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": random.getrandbits(63),
        }
        content = json.dumps(body | injected).encode()
        headers = {"content-type": "application/json"}
        if key := request.header(b"authorization"):
            headers["authorization"] = key.decode("latin-1")
        legs = []
        for leg, one in (("prefill", prefill), ("decode", decode)):
            self.attempts[leg] += 1
            legs.append(
                (
                    leg,
                    self._client.build_request(
                        "POST", one.url + request.path, content=content, headers=headers
                    ),
                )
            )
        return legs

    async def _attempt(self, request: Request, body: dict[str, Any]) -> httpx.Response | _Failed:
        legs = self._legs(request, body)
        if isinstance(legs, _Failed):
            return legs
        tasks = {leg: asyncio.create_task(self._send(leg, one)) for leg, one in legs}
        try:
            if self.spec.pairs_failures:
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                first = await tasks["prefill"]
                if isinstance(first, _Failed):
                    return first
            results = {leg: await task for leg, task in tasks.items()}
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        decode, prefill = results["decode"], results["prefill"]
        return prefill if isinstance(prefill, _Failed) and not isinstance(decode, _Failed) else decode

    async def _send(self, leg: str, request: httpx.Request) -> httpx.Response | _Failed:
        assert self._client is not None  # noqa: S101 - made together with the request
        try:
            response = await self._client.send(request)
        except httpx.HTTPError:
            return _Failed(leg, 502, f"the {leg} half could not be reached")
        if response.status_code < 400:
            return response
        return _Failed(leg, response.status_code, _message(response))

    async def _stream(self, request: Request, body: dict[str, Any], reply: Reply) -> Answer | None:
        legs = self._legs(request, body)
        if isinstance(legs, _Failed):
            return legs.answer()
        client = self._client
        assert client is not None  # noqa: S101 - made together with the requests
        opened: dict[str, httpx.Response] = {}

        async def opening(leg: str, one: httpx.Request) -> None:
            opened[leg] = await client.send(one, stream=True)

        try:
            await asyncio.gather(*(opening(leg, one) for leg, one in legs))
            decode = opened["decode"]
            if decode.status_code >= 400:
                return _quoted(decode.status_code, await decode.aread())
            reply.start(200, _SSE)
        except httpx.HTTPError:
            return _Failed("decode", 502, "an upstream could not be reached").answer()
        finally:
            if not reply.started:
                await _close(opened)
        await self._pump(_Pump(opened, reply))
        return None

    async def _pump(self, pump: _Pump) -> None:
        """Carry decode's events to the client; a client that leaves ends both halves, or not (smg)."""
        task = asyncio.create_task(pump.run())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.spec.kind == "smg" and pump.read == 0:
                pump.reply = None
                self._background.adopt(task)
            else:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            raise


def _message(response: httpx.Response) -> str:
    try:
        value = response.json()
    except ValueError:
        return response.text[:500]
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict):
            return str(inner.get("message", inner.get("detail", "")))
        return str(inner)
    return ""


def _quoted(status: int, body: bytes) -> Answer:
    """An upstream's error, quoted as the router does: cut to the length of what it quotes."""
    text = b"data: {'error': {\"message\":" + body + b"}}\n\n"
    return Answer(status, text[: len(body)], _SSE)


async def _close(opened: dict[str, httpx.Response]) -> None:
    for response in opened.values():
        await response.aclose()


class _Pump:
    """A streamed pair: decode's events go to the client, prefill's nowhere."""

    def __init__(self, opened: dict[str, httpx.Response], reply: Reply) -> None:
        self.reply: Reply | None = reply
        self.read = 0
        self._opened = opened

    async def run(self) -> None:
        """Read until the end; without a client, only until some tokens have come."""
        draining = asyncio.create_task(self._drain())
        try:
            async for chunk in self._opened["decode"].aiter_raw():
                self.read += 1
                if self.reply is not None:
                    await self.reply.write(chunk)
                elif self.read >= _LINGER_CHUNKS:
                    break
        except (httpx.HTTPError, httpx.StreamError):
            return
        finally:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await _close(self._opened)

    async def _drain(self) -> None:
        async for _ in self._opened["prefill"].aiter_raw():
            await asyncio.sleep(0)
