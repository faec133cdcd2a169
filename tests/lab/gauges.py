"""What an engine says about itself: metrics, queues, and whether anything is left in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from .client import call, prompt
from .errors import LabError
from .lab import Engine, Lab

OUTCOMES = "sglang:decode_deferred_kv_release_total"
FAILED = "sglang:num_transfer_failed_reqs_total"
_POLL = 0.25


def samples(engine: Engine, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of every series of `name`; empty while the engine has none."""
    answer = call(f"{engine.url}/metrics", timeout=20)
    families = text_string_to_metric_families(answer.body)
    return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


def releases(engine: Engine) -> dict[str, int]:
    """How many held requests a decode has released so far, by outcome."""
    found: dict[str, int] = {}
    for labels, value in samples(engine, OUTCOMES):
        found[labels["outcome"]] = found.get(labels["outcome"], 0) + int(value)
    return found


def failed_transfers(engine: Engine) -> int:
    """How many requests an engine has given up in mid transfer so far."""
    return int(sum(value for _, value in samples(engine, FAILED)))


@dataclass(frozen=True)
class Load:
    """What is in an engine at one moment: requests by place, and tokens of its pool in use."""

    running: int
    waiting: int
    queues: tuple[tuple[str, int], ...]
    used_tokens: int

    @property
    def requests(self) -> int:
        return self.running + self.waiting + sum(count for _, count in self.queues)


def load(engine: Engine) -> Load:
    """The engine's own account, from /v1/loads."""
    answer = call(f"{engine.url}/v1/loads?include=all", timeout=20)
    found: dict[str, Any] = answer.json()["loads"][0]
    split = found["disaggregation"]
    queues = tuple(sorted((k, v) for k, v in split.items() if k.endswith("_reqs")))
    return Load(found["num_running_reqs"], found["num_waiting_reqs"], queues, found["num_used_tokens"])


def drain(engines: Iterable[Engine], timeout: float = 60) -> None:
    """Wait until no request is left in the engines. LabError when some still are."""
    deadline = time.monotonic() + timeout
    for engine in engines:
        while (seen := load(engine)).requests:
            if time.monotonic() > deadline:
                raise LabError(f"{engine.name} still has requests after {timeout:g} s: {seen}")
            time.sleep(_POLL)


def flush(engine: Engine, timeout: float = 60) -> None:
    """Empty the prefix cache, which the engine allows only when it is idle.

    An idle engine counts its pool and its request slots, and ends itself when one is missing.
    """
    deadline = time.monotonic() + timeout
    while not (answer := call(f"{engine.url}/flush_cache", {}, timeout=20)).ok:
        if time.monotonic() > deadline:
            raise LabError(f"{engine.name} is not idle after {timeout:g} s: {answer.status} {answer.body}")
        time.sleep(_POLL)


def resident(engine: Engine) -> int:
    """Bytes of memory that the engine's processes have, what they share counted in each."""
    total = 0
    for pid in engine.server.members():
        try:
            pages = Path("/proc", str(pid), "statm").read_text("ascii").split()[1]
        except OSError:
            continue  # it ended meanwhile
        total += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return total


def nothing_is_left(lab: Lab, length: int = 1000) -> None:
    """Pool, request slots and queues are as in an engine that has just started; a prompt is answered.

    The engine itself counts pool and slots whenever it is idle, and would have ended itself.
    """
    drain(lab.engines)
    for _ in range(2):  # the second time after an idle look at what the first one left
        for engine in lab.engines:
            flush(engine)
    for engine in lab.engines:
        assert load(engine).used_tokens == 0
        assert engine.server.exit_code is None
        assert "leak" not in engine.server.log.read_text("utf-8", errors="replace")
    assert lab.direct(prompt(length)).decode.ok
