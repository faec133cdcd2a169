"""Known-answer requests: the same prompts before, during and after the others, compared by hash alone.

On a GPU the size of a batch alone may change a greedy answer late in the text. So the answers are asked for
twice before anything else; where these two differ already, no later difference means anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdguard.probe.context import BudgetSpent, Context
from pdguard.probe.exchange import answering, exchange, no_answer
from pdguard.probe.interface import Ask, Measure, Seen, Step, StepResult, Verdict

LENGTHS = (8, 33, 120, 257, 500)
NEW_TOKENS = 16
SLOW_SECONDS = 10.0
"""After an answer that took longer no more are asked for: a service that slow is left alone."""
_SEED = 9000


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two answers are apart: positions that differ, the first of them, and the lengths."""

    positions: int
    first: int | None
    longer_by: int

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.positions and not self.longer_by


def distance(one: Seen, other: Seen) -> Distance:
    """Compare two answers by their keyed marks and hashes; a difference beyond the marks counts as one."""
    pairs = enumerate(zip(one.marks, other.marks, strict=False))
    differ = [place for place, (a, b) in pairs if a != b]
    longer = other.outputs - one.outputs
    if not differ and not longer and one.digest != other.digest:
        return Distance(1, None, 0)
    return Distance(len(differ), differ[0] if differ else None, longer)


@dataclass(frozen=True, slots=True)
class _Drift:
    when: str
    number: int
    far: Distance
    before: str
    after: str


@dataclass(slots=True)
class Canary:
    """The known answers of one route. `baseline`, then `check` as often as wanted, then `result`."""

    step: Step
    _known: dict[int, Seen] = field(default_factory=dict)
    _varies: list[int] = field(default_factory=list)
    _drifts: list[_Drift] = field(default_factory=list)
    _compared: dict[str, int] = field(default_factory=dict)
    _trouble: str = ""
    _next: int = 0
    _slow: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prompt lengths in tokens, none longer than what both halves admit."""
        most = self.step.length.tokens if self.step.length is not None else LENGTHS[-1]
        return tuple(dict.fromkeys(min(length, most) for length in LENGTHS))

    async def baseline(self, context: Context) -> None:
        """Ask for every answer twice. Raises BudgetSpent."""
        for number in range(len(self.lengths)):
            pair = [await self._ask(context, number) for _ in range(2)]
            first, second = pair
            if first is None or second is None:
                continue
            if distance(first, second).same:
                self._known[number] = first
            else:
                self._varies.append(number)

    async def check(self, context: Context, when: str, *, whole: bool = False) -> None:
        """Ask again, one answer (another each time) or the `whole` set; skipped where the budget is spent."""
        numbers = sorted(self._known)
        if not numbers:
            return
        if not whole:
            numbers = [numbers[self._next % len(numbers)]]
            self._next += 1
        try:
            for number in numbers:
                seen = await self._ask(context, number)
                if seen is not None:
                    self._compare(when, number, seen)
        except BudgetSpent as spent:
            self._trouble = self._trouble or spent.what

    def result(self) -> StepResult:
        """What the comparisons say."""
        verdict, reason = self._verdict()
        measures = [Measure(f"answers compared {when}", n) for when, n in self._compared.items()]
        for drift in self._drifts:
            name = f"answer {drift.number + 1} {drift.when}"
            measures += [
                Measure(f"{name}: hash", f"{drift.before[:8]} then {drift.after[:8]}"),
                Measure(f"{name}: positions that differ", drift.far.positions),
                Measure(f"{name}: longer by", drift.far.longer_by),
            ]
            if drift.far.first is not None:
                measures.append(Measure(f"{name}: first difference at", drift.far.first))
        return StepResult(self.step, verdict, reason, measures=tuple(measures))

    def _verdict(self) -> tuple[Verdict, str]:
        count = sum(self._compared.values())
        if self._drifts:
            whens = ", ".join(dict.fromkeys(d.when for d in self._drifts))
            return (
                Verdict.DRIFTED,
                f"{len(self._drifts)} of {count} answers were not those of before ({whens}); "
                "a late first difference may come from batching, an early one does not",
            )
        if not self._known:
            if self._varies:
                return Verdict.INCONCLUSIVE, "the answers vary by themselves: two in a row differ already"
            return Verdict.INCONCLUSIVE, f"no answer to compare with: {self._trouble or 'none came'}"
        if not count:
            return Verdict.INCONCLUSIVE, f"no answer was asked for again: {self._trouble or 'the run ended'}"
        apart = f"; {len(self._varies)} that vary by themselves are left out" if self._varies else ""
        lost = f"; not all came: {self._trouble}" if self._trouble else ""
        return Verdict.STEADY, f"{count} answers were the same as before{apart}{lost}"

    def _compare(self, when: str, number: int, seen: Seen) -> None:
        self._compared[when] = self._compared.get(when, 0) + 1
        known = self._known[number]
        far = distance(known, seen)
        if not far.same:
            self._drifts.append(_Drift(when, number, far, known.digest, seen.digest))

    async def _ask(self, context: Context, number: int) -> Seen | None:
        if self._slow:
            return None
        route = self.step.route
        rank = None if self.step.length is None else self.step.length.rank
        ask = Ask(
            api=self.step.api,
            length=self.lengths[number],
            rid=context.rid(),
            seed=_SEED + number,
            new_tokens=NEW_TOKENS,
            bootstrap=None if route.router is not None else context.bootstrap(route, rank),
            rank=rank,
        )
        seen: Mapping[str, Seen] = await exchange(context, route, ask, to_the_end=True)
        one = answering(seen, route)
        if one.ended_after > SLOW_SECONDS:
            self._slow = True
            self._trouble = self._trouble or f"an answer took {one.ended_after:.0f} s, no more were asked for"
        if one.answered:
            return one
        self._trouble = self._trouble or no_answer(seen)
        return None
