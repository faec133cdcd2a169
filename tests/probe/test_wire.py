"""The wire over real sockets: engines and routers of the simulator, and servers that break off or lie."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from pdguard.facts._fetch import Tls
from pdguard.probe.interface import Api, Ask, Bootstrap, End, ErrorClass, Finish, Role, Seen, Target
from pdguard.probe.wire import MAX_BODY, Wire
from pdguard.simulator import ClusterSpec, Live, RouterSpec, running
from tests.simulator.helpers import WAIT, pair, prefill

T = TypeVar("T")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ROUTER = RouterSpec("r0", engines=("p0", "d0"), retry_seconds=0.01)
RID = "pdguard-probe-test-001"
OK = b"HTTP/1.1 200 OK\r\n"
SSE = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def cluster(spec: ClusterSpec, body: Callable[[Live, Wire], Awaitable[T]]) -> T:
    async def whole() -> T:
        async with asyncio.timeout(20), running(spec) as live:
            wire = Wire()
            result = await body(live, wire)
            await wire.close()
            assert len(live.rooms) == 0
            return result

    return asyncio.run(whole())


def target(live: Live, name: str) -> Target:
    role = {"p": Role.PREFILL, "d": Role.DECODE, "r": Role.ROUTER}[name[0]]
    return Target(name, role, live.url(name))


async def halves(live: Live, wire: Wire, ask: Ask) -> tuple[Seen, Seen]:
    first, second = await asyncio.gather(*(wire.send(target(live, n), ask, 10) for n in ("p0", "d0")))
    return first, second


def direct(api: Api, length: int, **more: bool) -> Ask:
    return Ask(api, length, RID, bootstrap=Bootstrap("127.0.0.1", 1, 1000), model="model", **more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", [Api.GENERATE, Api.COMPLETIONS])
def test_a_pair_answers(api: Api, stream: bool) -> None:
    async def body(live: Live, wire: Wire) -> tuple[tuple[Seen, Seen], Seen, Seen]:
        ask = direct(api, 100, stream=stream)
        again = Ask(api, 100, RID, stream=not stream, bootstrap=ask.bootstrap, model="model")
        other = Ask(api, 100, RID, seed=1, stream=stream, bootstrap=ask.bootstrap, model="model")
        first = await halves(live, wire, ask)
        return first, (await halves(live, wire, again))[1], (await halves(live, wire, other))[1]

    (p0, d0), again, other = cluster(pair("0.5.22"), body)
    assert p0.answered
    assert d0.answered
    assert (d0.end, d0.status, d0.outputs, d0.finish) == (End.COMPLETE, 200, 4, Finish.LENGTH)
    assert again.digest == d0.digest
    assert again.marks == d0.marks
    assert other.digest != d0.digest
    assert p0.marks == d0.marks[:1]
    assert d0.headers_after is not None
    assert d0.first_output_after is not None
    assert 0 < d0.headers_after <= d0.first_output_after <= d0.ended_after < 5
    if not (stream and api is Api.COMPLETIONS):
        assert (d0.prompt_tokens, d0.completion_tokens) == (100, 4)
    assert (d0.events > 0) == stream
    assert d0.trouble == ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", [Api.GENERATE, Api.COMPLETIONS])
def test_over_the_smaller_pool(api: Api, stream: bool) -> None:
    async def body(live: Live, wire: Wire) -> tuple[Seen, Seen]:
        return await halves(live, wire, direct(api, 1500, stream=stream))

    p0, d0 = cluster(pair("0.5.22", (1024, 4096)), body)
    assert p0.refused
    assert (p0.said_tokens, p0.said_limit) == (1500, 1018)
    assert (p0.status, p0.inner_status) == (
        200 if stream else 400,
        None if api is Api.GENERATE and not stream else 400,
    )
    assert d0.error is ErrorClass.WAITED_DECODE
    assert d0.said_seconds == WAIT
    assert WAIT <= d0.ended_after < 5
    assert not p0.answered
    assert not d0.answered


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", [Api.GENERATE, Api.COMPLETIONS])
def test_over_the_context_through_a_router(api: Api, stream: bool) -> None:
    async def body(live: Live, wire: Wire) -> Seen:
        ask = Ask(api, 5000, RID, words=2501, stream=stream, model="model")
        return await wire.send(target(live, "r0"), ask, 10)

    seen = cluster(pair("0.5.22", (4096, 4096), ROUTER), body)
    assert (seen.end, seen.error) == (End.COMPLETE, ErrorClass.OVER_CONTEXT)
    assert (seen.said_tokens, seen.said_limit) == (5001, 4096)


def test_a_router_names_the_half() -> None:
    async def body(live: Live, wire: Wire) -> tuple[Seen, Seen]:
        over = await wire.send(target(live, "r0"), Ask(Api.GENERATE, 1500, RID), 10)
        ids = await wire.send(target(live, "r0"), Ask(Api.COMPLETIONS, 100, RID), 10)
        return over, ids

    over, ids = cluster(pair("0.5.22", (1024, 1024), ROUTER), body)
    assert (over.status, over.refused, over.error_side) == (400, True, Role.DECODE)
    assert (ids.status, ids.error) == (422, ErrorClass.NOT_TAKEN)


def test_leaving_ends_the_request_on_the_engine() -> None:
    async def body(live: Live, wire: Wire) -> tuple[Seen, Seen, float]:
        alone = Target("d0", Role.DECODE, live.url("d0"))
        leave = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, leave.set)
        began = time.monotonic()
        left = await wire.send(alone, direct(Api.GENERATE, 100), 10, leave)
        took = time.monotonic() - began
        waited = await wire.send(alone, direct(Api.GENERATE, 100), 0.2)
        async with asyncio.timeout(5):
            while len(live.rooms):
                await asyncio.sleep(0.01)
        return left, waited, took

    spec = pair("0.5.22")
    slow = ClusterSpec("pair", tuple(replace(one, waiting_timeout=300.0) for one in spec.engines))
    left, waited, took = cluster(slow, body)
    for seen in (left, waited):
        assert (seen.end, seen.status, seen.headers_after) == (End.CLOSED, 0, None)
        assert 0.19 <= seen.ended_after < 1
    assert took < 1


def test_cancelling_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while await reader.read(65536):
            pass
        closed.set()
        writer.close()

    async def body() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            wire = Wire()
            task = asyncio.create_task(wire.send(_at(server), Ask(Api.GENERATE, 9, RID), 60))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(closed.wait(), 5)
            await wire.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())


def _at(server: asyncio.Server, key: str | None = None) -> Target:
    port = server.sockets[0].getsockname()[1]
    return Target("x", Role.DECODE, f"http://127.0.0.1:{port}", key=key)


def answer(*pieces: bytes, ask: Ask | None = None, wait: float = 5.0, hold: bool = False) -> Seen:
    """What is seen of a server that sends these bytes, and then closes or (hold) stays silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if hold:
                await reader.read(-1)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def body() -> Seen:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            wire = Wire()
            try:
                return await wire.send(_at(server), ask or Ask(Api.GENERATE, 9, RID, stream=True), wait)
            finally:
                await wire.close()

    return asyncio.run(body())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


EVENT = b'data: {"output_ids":[1],"meta_info":{"completion_tokens":1,"finish_reason":null}}\n\n'
LAST = b'data: {"output_ids":[1,2],"meta_info":{"completion_tokens":2,"finish_reason":{"type":"length"}}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("wire_bytes", "end", "words"),
    [
        (SSE + chunk(EVENT) + chunk(LAST) + chunk(DONE) + b"0\r\n\r\n", End.COMPLETE, ""),
        (SSE + chunk(EVENT) + chunk(LAST) + b"0\r\n\r\n", End.COMPLETE, ""),
        (OK + b"\r\n" + EVENT + LAST + DONE, End.COMPLETE, ""),
        (
            SSE + chunk(b"data: {\n\n" + LAST + DONE) + b"0\r\n\r\n",
            End.COMPLETE,
            "that could not be read: 1",
        ),
        (SSE + chunk(EVENT) + b"0\r\n\r\n", End.BROKEN, "ended before its answer"),
        (SSE + chunk(EVENT), End.BROKEN, "ended too early"),
        (b"", End.BROKEN, "ended too early"),
        (OK + b"content-length: 99\r\n\r\n{}", End.BROKEN, "ended too early"),
        (SSE + chunk(b"data: secret\n\n" + DONE) + b"0\r\n\r\n", End.UNREADABLE, "no answer of a known form"),
        (OK + b"content-length: 6\r\n\r\nsecret", End.UNREADABLE, "no answer of a known form"),
        (OK + b"content-length: 2\r\n\r\n[]", End.UNREADABLE, "no answer of a known form"),
        (OK + b"content-encoding: gzip\r\ncontent-length: 6\r\n\r\nsecret", End.UNREADABLE, "compressed"),
        (b"HTTP/1.1 302 Found\r\nlocation: /secret\r\n\r\n", End.UNREADABLE, "redirect"),
        (b"220 secret SMTP\r\n\r\n", End.UNREADABLE, "not HTTP"),
        (SSE + b"secret", End.UNREADABLE, "not HTTP"),
        (OK + b"content-length: %d\r\n\r\n{" % (MAX_BODY + 1), End.TOO_LARGE, "longer than"),
        (OK + b"content-length: " + b"9" * 4000 + b"\r\n\r\n{", End.UNREADABLE, "not HTTP"),
        (OK + b"x-secret: " + b"secret" * 40_000, End.UNREADABLE, "not HTTP"),
        (SSE + chunk(b"data: x") * 60_000, End.TOO_LARGE, "small pieces"),
        (SSE + chunk(b"data: " + b"x" * 2_000_000), End.TOO_LARGE, "a line of the stream"),
        (OK + b"\r\n" + b"[" * (MAX_BODY + 1), End.TOO_LARGE, "longer than"),
        (OK + b"\r\n" + b"[" * 100_000, End.UNREADABLE, "no answer of a known form"),
    ],
)
def test_what_comes_instead_of_an_answer(wire_bytes: bytes, end: End, words: str) -> None:
    seen = answer(wire_bytes)
    assert (seen.end, words in seen.trouble) == (end, True), seen
    assert bool(words) == bool(seen.trouble)
    assert "secret" not in repr(seen)
    assert seen.outputs == (2 if LAST in wire_bytes else 1 if EVENT in wire_bytes else 0)


def test_a_stream_is_read_as_it_comes() -> None:
    seen = answer(SSE, chunk(EVENT), wait=0.4, hold=True)
    assert (seen.end, seen.status, seen.outputs, seen.trouble) == (End.CLOSED, 200, 1, "")
    assert seen.first_output_after is not None
    assert seen.first_output_after < 0.3
    done = answer(SSE, chunk(LAST + DONE), hold=True)
    assert (done.end, done.outputs) == (End.COMPLETE, 2)
    assert done.ended_after < 2


def test_a_status_without_a_body_tells_the_error() -> None:
    assert answer(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").error is ErrorClass.UNAUTHORIZED
    seen = answer(b"HTTP/1.1 503 Busy\r\ncontent-length: 99\r\n\r\n{", wait=0.2, hold=True)
    assert (seen.end, seen.error) == (End.CLOSED, ErrorClass.UNAVAILABLE)


def test_no_connection() -> None:
    async def body(*targets: Target) -> list[Seen]:
        wire = Wire()
        seen = [await wire.send(one, Ask(Api.GENERATE, 9, RID), 5) for one in targets]
        await wire.close()
        return seen

    targets = (
        Target("x", Role.DECODE, "http://127.0.0.1:1"),
        Target("x", Role.DECODE, "http://no-such-host.invalid"),
        Target("x", Role.DECODE, "ftp://127.0.0.1"),
        Target("x", Role.DECODE, "http://127.0.0.1:1", key="se\ncret"),
        Target("x", Role.DECODE, "https://127.0.0.1:1", tls=Tls(ca_file="no-such-file")),
    )
    seen = asyncio.run(body(*targets))
    assert {one.end for one in seen} == {End.NO_CONNECTION}
    words = ("refused", "does not resolve", "not an http", "the key holds", "TLS files")
    assert all(word in one.trouble for word, one in zip(words, seen, strict=True))
    assert "cret" not in repr(seen)


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK + b"set-cookie: a=b\r\ncontent-length: 2\r\n\r\n{}")
        await reader.read(-1)  # the other side closes, although this one would go on
        writer.close()

    async def body() -> None:
        async with asyncio.timeout(10), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            wire = Wire()
            for _ in range(2):
                await wire.send(_at(server, key="k1"), Ask(Api.COMPLETIONS, 9, RID), 5)
            await wire.close()

    asyncio.run(body())
    assert len(heads) == 2
    for head in heads:
        text = head.decode().lower()
        assert text.startswith("post /v1/completions http/1.1\r\n")
        assert "connection: close\r\n" in text
        assert "authorization: bearer k1\r\n" in text
        assert f"x-request-id: {RID}\r\n" in text
        assert "cookie" not in text


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        answer(OK + b"x-secret: secret\r\ncontent-length: 6\r\n\r\nsecret")
        answer(b"secret\r\n\r\n")
    assert "secret" not in caplog.text


def test_a_long_prompt_is_made_beside_the_loop() -> None:
    """While two prompts of millions of ids are made, another task still runs."""

    async def body() -> float:
        wire = Wire()
        nowhere = Target("x", Role.DECODE, "http://127.0.0.1:1")
        sends = [
            asyncio.create_task(wire.send(nowhere, Ask(Api.GENERATE, 1_000_000, RID, seed=n), 5))
            for n in range(2)
        ]
        worst = 0.0
        while not all(task.done() for task in sends):
            began = time.monotonic()
            await asyncio.sleep(0.001)
            worst = max(worst, time.monotonic() - began)
        await wire.close()
        return worst

    assert asyncio.run(body()) < 0.5


def test_two_wires_do_not_share_a_key() -> None:
    whole = SSE + chunk(LAST + DONE) + b"0\r\n\r\n"
    assert answer(whole).digest != answer(whole).digest


def test_a_rank_of_a_wider_engine() -> None:
    async def body(live: Live, wire: Wire) -> tuple[Seen, Seen]:
        right = Ask(Api.GENERATE, 50, RID, bootstrap=Bootstrap("127.0.0.1", 1, 1001), rank=1)
        wrong = Ask(Api.GENERATE, 50, RID, bootstrap=Bootstrap("127.0.0.1", 1, 1001), rank=0)
        return await wire.send(target(live, "p0"), right, 5), await wire.send(target(live, "p0"), wrong, 5)

    spec = ClusterSpec("one", (prefill("0.5.22", dp=2),))
    right, wrong = cluster(spec, body)
    assert right.error is ErrorClass.WAITED_PREFILL
    assert wrong.error is ErrorClass.RANK_CONFLICT
