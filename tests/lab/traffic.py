"""A fixed mix of requests: short to long, streamed or not, direct or routed, and clients that do not wait.

The same mix every time, so that the answers of two deployments can be compared byte by byte.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from .client import Answer, call, generate_body, prompt, send_only
from .lab import Lab

Ending = Literal["answered", "left", "aborted"]
_LONG_ANSWER = 300
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Ask:
    """One request. A client that leaves, or aborts the request, does so `after` seconds."""

    number: int
    length: int
    seed: int
    new_tokens: int
    stream: bool
    routed: bool
    ending: Ending
    after: float = 0.0


@dataclass(frozen=True)
class Reply:
    """What of an answer must not depend on anything but the request."""

    status: int | None
    tokens: tuple[int, ...]
    text: str
    finish: str
    prompt_tokens: int


def mix(answered: int, longest: int, *, given_up: int = 0, seed: int = 4) -> list[Ask]:
    """`answered` requests whose answer counts, and `given_up` whose client leaves or aborts, shuffled.

    Prompts are 1 to `longest` tokens long, one in four within 10 of `longest`.
    """
    chance = random.Random(seed)  # noqa: S311 - a fixed mix, not a secret
    count: dict[Ending, int] = {"answered": answered, "left": given_up // 2}
    count["aborted"] = given_up - count["left"]
    endings = [ending for ending, times in count.items() for _ in range(times)]
    chance.shuffle(endings)
    asks = []
    for number, ending in enumerate(endings):
        near = chance.random() < 0.25
        length = chance.randint(max(1, longest - 10), longest) if near else chance.randint(1, longest)
        new = chance.randint(1, 48) if ending == "answered" else _LONG_ANSWER
        stream, routed = chance.random() < 0.5, chance.random() < 0.3
        after = chance.choice((0.0, 0.05, 0.15, 0.4))
        asks.append(Ask(number, length, chance.randint(0, 255), new, stream, routed, ending, after))
    return asks


def send(lab: Lab, asks: Sequence[Ask], clients: int = 4) -> dict[int, Reply]:
    """Send `asks` by so many clients at once; the replies of those that wait, by number."""
    return {number: reply for number, (reply, _) in send_timed(lab, asks, clients).items()}


def send_timed(lab: Lab, asks: Sequence[Ask], clients: int = 4) -> dict[int, tuple[Reply, float]]:
    """The same, each with the seconds it took."""

    def one(ask: Ask) -> tuple[Reply | None, float]:
        started = time.monotonic()
        return _one(lab, ask), time.monotonic() - started

    with ThreadPoolExecutor(clients) as pool:
        pairs = zip(asks, pool.map(one, asks), strict=True)
        return {ask.number: (reply, took) for ask, (reply, took) in pairs if reply is not None}


def _one(lab: Lab, ask: Ask) -> Reply | None:
    if ask.ending == "left":
        _leave(lab, ask)
        return None
    if ask.ending == "aborted":
        _abort(lab, ask)
        return None
    more: dict[str, Any] = {"stream": True} if ask.stream else {}
    tokens = prompt(ask.length, ask.seed)
    if ask.routed and lab.router is not None:
        return _reply(lab.routed(tokens, ask.new_tokens, timeout=_TIMEOUT, **more))
    return _reply(lab.direct(tokens, ask.new_tokens, timeout=_TIMEOUT, **more).decode)


def _reply(answer: Answer) -> Reply:
    if answer.status != 200:
        return Reply(answer.status, (), answer.body, "", 0)
    said = answer.json()
    if "output_ids" not in said:
        return Reply(answer.status, (), answer.body, "", 0)
    return Reply(200, tuple(answer.tokens), said["text"], answer.finish, answer.prompt_tokens)


def _leave(lab: Lab, ask: Ask) -> None:
    """The clients of both halves, or of the router, hang up."""
    tokens = prompt(ask.length, ask.seed)
    more: Mapping[str, Any] = {"stream": True} if ask.stream else {}
    if ask.routed and lab.router is not None:
        urls: tuple[str, ...] = (f"{lab.router.url}/generate",)
        body = generate_body(tokens, ask.new_tokens, **more)
    else:
        halves = lab.halves(tokens, ask.new_tokens, **more)
        urls, body = halves.urls, halves.body
    connections = [send_only(url, body) for url in urls]
    time.sleep(ask.after)
    for connection in connections:
        connection.close()


def _abort(lab: Lab, ask: Ask) -> None:
    """The request is ended by the engines' own command, on both halves."""
    rid = f"given-up-{time.monotonic_ns()}"
    more = {"stream": ask.stream, "rid": rid}
    tokens = prompt(ask.length, ask.seed)
    waiting = threading.Thread(
        target=lambda: lab.direct(tokens, ask.new_tokens, timeout=_TIMEOUT, **more), daemon=True
    )
    waiting.start()
    time.sleep(ask.after)
    for engine in (lab.prefill, lab.decode):
        call(f"{engine.url}/abort_request", {"rid": rid}, timeout=20)
    waiting.join()
