"""What an exercise gives: one result for each contract, and the documents they are published as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = "pdguard.exercise/1"
PAIR_SCHEMA = "pdguard.exercise-pair/1"

State = Literal["pass", "fail", "not-run"]


@dataclass(frozen=True, slots=True)
class ContractResult:
    """One contract on one engine, or on one pair of engines."""

    id: str
    fixes: tuple[str, ...]
    backend: str
    """mooncake, nixl or mori; `any` where the contract does not depend on it."""
    hold: str
    """How the hold of decode was asked for: on, off, default; `any` where it does not matter."""
    outcome: str
    """A word such as fixed, vulnerable, drained, timeout, no hold, early ack, partial."""
    state: State
    why: str
    stand_ins: tuple[str, ...] = ()
    """What was not real, beyond what the whole report names."""
    saw: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.id,
            "fixes": list(self.fixes),
            "backend": self.backend,
            "hold": self.hold,
            "outcome": self.outcome,
            "state": self.state,
            "why": self.why,
            "stand_ins": list(self.stand_ins),
            "saw": dict(self.saw),
        }


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that really ran."""

    python: str
    path: str | None = None
    version: str = "unknown"
    root: str = ""
    """The folder of the package `sglang` that was imported."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Parts that could not be imported, with the reason."""
    stand_ins: tuple[str, ...] = ()
    """Packages and operators that are absent here and were stood in for."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "python": self.python,
            "path": self.path,
            "version": self.version,
            "root": self.root,
            "missing": dict(self.missing),
            "stand_ins": list(self.stand_ins),
        }


def _counts(results: tuple[ContractResult, ...]) -> dict[str, int]:
    seen = Counter(result.state for result in results)
    return {state: seen[state] for state in ("pass", "fail", "not-run")}


@dataclass(frozen=True, slots=True)
class ExerciseReport:
    """All contracts of one engine."""

    engine: Engine
    results: tuple[ContractResult, ...]

    def outcome(self, contract: str) -> str | None:
        """The outcome of one contract; None where it did not run."""
        for result in self.results:
            if result.id == contract and result.state != "not-run":
                return result.outcome
        return None

    def document(self) -> dict[str, Any]:
        """The JSON document `pdguard.exercise/1`."""
        return {
            "schema": SCHEMA,
            "engine": self.engine.document(),
            "contracts": [result.document() for result in self.results],
            "summary": _counts(self.results),
        }


@dataclass(frozen=True, slots=True)
class PairReport:
    """The abort handshake between two installed engines."""

    decode: Engine
    prefill: Engine
    backend: str
    hold: str
    results: tuple[ContractResult, ...]

    def document(self) -> dict[str, Any]:
        """The JSON document `pdguard.exercise-pair/1`."""
        return {
            "schema": PAIR_SCHEMA,
            "decode": self.decode.document(),
            "prefill": self.prefill.document(),
            "backend": self.backend,
            "hold": self.hold,
            "contracts": [result.document() for result in self.results],
            "summary": _counts(self.results),
        }
