"""Prompts that one half of a pair refuses: in any order, many at once, and what their answers must be."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from . import traffic
from .client import Answer, call, prompt
from .lab import Lab, Pair
from .spec import Role

SMALL, LARGE = 1024, 4096
PREFILL_REFUSES, DECODE_REFUSES = (SMALL, LARGE), (LARGE, SMALL)
"""Pools of the two halves."""

OVER_LIMIT = prompt(1500, 5)
LIMIT_MESSAGE = "exceeds the maximum allowed length (1018 tokens)"
AT_DOOR = {
    "prefill": "prefill has refused the request at its door",
    "decode": "decode has refused the request at its door",
}
"""What the half that would have accepted says, by the half that has refused."""

SOON = 1.0
"""Seconds within which both halves have to be answered."""

ROLES: tuple[Role, Role] = ("prefill", "decode")
_ORDINARY = prompt(900, 77)
_TIMEOUT = 60.0
_ROOMS = itertools.count(1 << 40, 2)


def refuser(lab: Lab) -> Role:
    """The half that refuses what is over the limit of the small pool."""
    return "prefill" if lab.spec.prefill.pool == SMALL else "decode"


def has_tokens(answer: Answer) -> bool:
    """Whether a client would take anything in this answer for generated tokens."""
    if answer.status != 200:
        return False
    said = answer.json()
    return bool(said.get("output_ids") or said.get("text"))


def trouble(answer: Answer, *words: str, stream: bool = False, within: float = SOON) -> str:
    """What is wrong with the answer to a refused prompt; empty if nothing is. It holds one of `words`."""
    found = []
    if answer.status != (200 if stream else 400):
        found.append(f"status {answer.status}")
    if stream and answer.status == 200 and '"status_code":400' not in answer.body.replace(" ", ""):
        found.append("no status 400 within the stream")
    if not any(word in answer.body for word in words):
        found.append("another reason")
    if answer.seconds >= within:
        found.append(f"only after {answer.seconds:.2f} s")
    if has_tokens(answer):
        found.append("tokens")
    return f"{', '.join(found)}: {answer.body[:600]}" if found else ""


def troubles(
    lab: Lab, pair: Pair, *, first: Role | None = None, apart: float = 0.0, stream: bool = False
) -> str:
    """The same of both halves, of which `first` was sent so many seconds before the other one."""
    role, found = refuser(lab), []
    for name, answer in (("prefill", pair.prefill), ("decode", pair.decode)):
        word = LIMIT_MESSAGE if name == role else AT_DOOR[role]
        waits = apart if name == first and name != role else 0.0
        if wrong := trouble(answer, word, stream=stream, within=SOON + waits):
            found.append(f"{name}: {wrong}")
    return "; ".join(found)


def room() -> int:
    """A number that no request has had."""
    return next(_ROOMS)


def apart(lab: Lab, tokens: Sequence[int], number: int, first: Role, seconds: float) -> Pair:
    """One request whose halves are sent so many seconds apart."""
    halves = lab.halves(tokens, 8, room=number)
    urls = {"prefill": halves.prefill_url, "decode": halves.decode_url}
    answers: dict[str, Answer] = {}

    def send(role: Role) -> None:
        if role != first:
            time.sleep(seconds)
        answers[role] = call(urls[role], halves.body, _TIMEOUT)

    threads = [threading.Thread(target=send, args=(role,)) for role in ROLES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Pair(answers["prefill"], answers["decode"])


def alone(lab: Lab, role: Role, number: int) -> Answer:
    """The half of an over-limit prompt that is refused, without the other one."""
    halves = lab.halves(OVER_LIMIT, 8, room=number)
    return call(halves.prefill_url if role == "prefill" else halves.decode_url, halves.body, _TIMEOUT)


def ordinary(lab: Lab, number: int, first: Role | None = None, seconds: float = 0.0) -> tuple[Any, ...]:
    """What an ordinary prompt with this number is answered: status of both halves, and the tokens."""
    if first is None:
        pair = lab.direct(_ORDINARY, 8, room=number, timeout=_TIMEOUT)
    else:
        pair = apart(lab, _ORDINARY, number, first, seconds)
    tokens = tuple(pair.decode.tokens) if pair.decode.status == 200 else pair.decode.body
    return pair.prefill.status, pair.decode.status, tokens


@dataclass(frozen=True)
class Served:
    """What became of valid requests: their replies by number, and what they took."""

    replies: dict[int, traffic.Reply]
    seconds: tuple[float, ...]

    @property
    def longest(self) -> float:
        return max(self.seconds)

    @property
    def statuses(self) -> list[int | None]:
        return sorted({reply.status for reply in self.replies.values()}, key=str)

    def __str__(self) -> str:
        took = f"median {statistics.median(self.seconds):.2f} s, most {self.longest:.2f} s"
        return f"{len(self.seconds)} valid requests, status {self.statuses}, {took}"


def serve(lab: Lab, asks: Sequence[traffic.Ask]) -> Served:
    """Send valid requests by two clients."""
    found = traffic.send_timed(lab, asks, clients=2)
    replies = {number: reply for number, (reply, _) in found.items()}
    return Served(replies, tuple(took for _, took in found.values()))


def flood(
    lab: Lab, prompts: int, asks: Sequence[traffic.Ask], *, routed: bool = True, clients: int = 8
) -> tuple[Served, list[Answer]]:
    """Valid requests beside a flood of over-limit prompts; and what the flood got.

    With `routed` every other one goes through the router, which tries several times where it takes long.
    """

    def one(number: int) -> list[Answer]:
        tokens = prompt(1500, number)
        if routed and number % 2:
            return [lab.routed(tokens, 8, timeout=_TIMEOUT)]
        pair = lab.direct(tokens, 8, timeout=_TIMEOUT)
        return [pair.prefill, pair.decode]

    with ThreadPoolExecutor(clients + 1) as pool:
        answers = [pool.submit(one, number) for number in range(prompts)]
        served = serve(lab, asks)
        return served, [answer for each in answers for answer in each.result()]
