"""What an engine counts while it runs: queues, outcomes, calls. Content-free and bounded."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping

Labels = tuple[tuple[str, str], ...]
_SAMPLE = re.compile(r"(?:sglang:)?(?P<name>\w+)(?:\{(?P<labels>.*)\})?$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class EngineState:
    """Counters and queue lengths of one engine."""

    def __init__(self, seed: Mapping[str, float]) -> None:
        self.counters: dict[tuple[str, Labels], float] = {}
        self.queues: Counter[str] = Counter()
        self.used_tokens = 0
        self.served = False
        self.calls: Counter[tuple[str, str]] = Counter()
        self.mutations: Counter[str] = Counter()
        self._ran = hashlib.blake2b(digest_size=16)
        for sample, value in seed.items():
            found = _SAMPLE.match(sample)
            if found is None:
                raise ValueError(f"not a sample name: {sample}")
            self.add(found["name"], tuple(sorted(_LABEL.findall(found["labels"] or ""))), value)

    def add(self, name: str, labels: Labels = (), amount: float = 1.0) -> None:
        """Raise a counter; it has no series until the first time."""
        key = (name, labels)
        self.counters[key] = self.counters.get(key, 0.0) + amount

    def value(self, name: str, **labels: str) -> float:
        """A counter's value, 0 where it has no series yet."""
        return self.counters.get((name, tuple(sorted(labels.items()))), 0.0)

    def ran(self, digest: bytes) -> None:
        """Note that a request occupied the pool; only a digest of digests is kept."""
        self._ran.update(digest)
        self.served = True

    def left_behind(self) -> bytes:
        """A digest of everything that has occupied the pool so far."""
        return self._ran.digest()
