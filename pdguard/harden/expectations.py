"""What the exercise must show of a package, by the backports that are in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdguard.exercise.catalogue import Contract, select
from pdguard.exercise.model import ContractResult, ExerciseReport
from pdguard.harden.model import Backport


@dataclass(frozen=True, slots=True)
class Judged:
    """How an exercise went: contracts that must pass and did, that must pass and did not, and the rest."""

    passed: tuple[ContractResult, ...]
    broken: tuple[ContractResult, ...]
    not_run: tuple[ContractResult, ...]

    def text(self) -> str:
        """One line of figures, with the first contract that broke."""
        text = f"{len(self.passed)} of {len(self.passed) + len(self.broken)} contracts hold"
        if self.not_run:
            text += f", {len(self.not_run)} could not be run ({self.not_run[0].why})"
        if self.broken:
            first = self.broken[0]
            text += (
                f"; {first.id} gives {first.outcome} ({first.why})" if first.why else f"; {first.id} fails"
            )
        return text


def expected(backports: Iterable[Backport]) -> tuple[Contract, ...]:
    """The contracts that must pass once these are in: what each of them says that it proves."""
    names = list(dict.fromkeys(name for backport in backports for name in backport.proves))
    return select(names) if names else ()


def judge(report: ExerciseReport, contracts: Sequence[Contract]) -> Judged:
    """Sort the results of `contracts`."""
    wanted = {c.id for c in contracts}
    results = [r for r in report.results if r.id in wanted]
    return Judged(
        tuple(r for r in results if r.state == "pass"),
        tuple(r for r in results if r.state == "fail"),
        tuple(r for r in results if r.state == "not-run"),
    )
