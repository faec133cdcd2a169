"""Which steps a budget allows: those that tell most before controls, the mildest before the worst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pdguard.probe.costs import Cost, calibration, canary_cost, lacking, too_small
from pdguard.probe.interface import Api, Budget, Danger, Kind, LeftOut, Length, Side, Step
from pdguard.probe.routes import Way

_NOTHING = Cost(0, 0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Draft:
    """A step before it has a number, and why it may expose something."""

    way: Way
    step: Step
    why: tuple[str, ...]

    @property
    def what(self) -> str:
        """What it is, wherever it goes."""
        step = self.step
        parts = [step.kind.value]
        parts += [step.length.side.value] if step.length is not None and step.kind is not Kind.CANARY else []
        parts += [step.api.value if step.api is not Api.GENERATE else ""]
        return ", ".join(part for part in parts if part)

    @property
    def title(self) -> str:
        """What it is, and where it goes."""
        return f"{self.what}, {self.step.route.name}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Steps in their order, and the known answers that go with them."""

    drafts: Sequence[Draft]
    canaries: Sequence[Draft]

    def steps(self, wait: float) -> Iterator[Step]:
        """All of them; known answers come first. `wait` is how long one answer is waited for, in seconds."""
        for one in self.canaries:
            yield _costing(one.step, self._known(one, wait))
        measured: set[tuple[str, Api]] = set()
        for one in self.drafts:
            step, path = one.step, (one.step.route.name, one.step.api)
            if step.api is not Api.GENERATE and path not in measured:
                # The first text of a path finds out how many tokens a word is.
                step = _costing(step, Cost.of(step) + calibration(step.route, wait))
                measured.add(path)
            yield step

    def cost(self, wait: float) -> Cost:
        """The worst case of all of them together."""
        return sum((Cost.of(step) for step in self.steps(wait)), _NOTHING)

    def _known(self, one: Draft, wait: float) -> Cost:
        # One is asked for after each step, and one more while a step waits.
        others = len(self.drafts) + sum(d.step.danger is not Danger.ORDINARY for d in self.drafts)
        assert one.step.length is not None  # noqa: S101 - known answers have one
        return canary_cost(one.way.route, one.step.length, others, wait)


def _costing(step: Step, cost: Cost) -> Step:
    return replace(step, requests=cost.requests, tokens=cost.tokens, seconds=cost.seconds)


def afford(wanted: Choice, budget: Budget, narrower: str, left: list[LeftOut]) -> Choice:
    """The part of `wanted` that `budget` allows; what is dropped is added to `left` with what it needs.

    Controls are dropped first, over the context before streamed before plain ones, then known answers, then
    the other steps from the end, where the worst are. `narrower` is an option that asks for less, or empty.
    """

    def fits(chosen: Choice) -> bool:
        return not lacking(chosen.cost(budget.wait), budget)

    if fits(wanted):
        return wanted
    kept = Choice([], [])
    for draft in (d for d in wanted.drafts if not d.step.control):
        more = replace(kept, drafts=[*kept.drafts, draft])
        if not fits(more):
            break
        kept = more
    for known in wanted.canaries:
        more = replace(kept, canaries=[*kept.canaries, known])
        kept = more if fits(more) else kept
    for draft in sorted((d for d in wanted.drafts if d.step.control), key=_control_order):
        taken = {id(d) for d in (*kept.drafts, draft)}
        more = replace(kept, drafts=[d for d in wanted.drafts if id(d) in taken])
        if not fits(more):
            break
        kept = more
    why, todo = too_small(wanted.cost(budget.wait), budget, narrower)
    taken = {id(d) for d in (*kept.drafts, *kept.canaries)}
    dropped = [d for d in wanted.drafts if id(d) not in taken]
    for group, lost in (
        ([d for d in dropped if not d.step.control], True),
        ([d for d in wanted.canaries if id(d) not in taken], True),
        ([d for d in dropped if d.step.control], False),
    ):
        if group:
            left.append(LeftOut(_titles(group), why, todo, lost))
    return kept


def _control_order(draft: Draft) -> int:
    """The most telling control first."""
    step = draft.step
    if step.length is not None and step.length.side is Side.CONTEXT:
        return 2
    return int(step.stream)


def _titles(group: Sequence[Draft]) -> str:
    if len(group) == 1:
        return group[0].title
    if group[0].step.kind is Kind.CANARY:
        return f"{group[0].title} and {len(group) - 1} more"
    if group[0].step.control:
        return f"{len(group)} controls, the first `{group[0].title}`"
    return f"{len(group)} steps, from `{group[0].title}` on"


def step_of(
    way: Way, kind: Kind, length: Length, danger: Danger, cost: Cost, stream: bool, api: Api = Api.GENERATE
) -> Step:
    """A step without a number yet."""
    pool = way.smallest_pool
    return Step(
        0,
        kind,
        way.towards(stream),
        danger,
        cost.requests,
        cost.tokens,
        cost.seconds,
        cost.held,
        cost.held / pool if pool else None,
        length,
        api,
        stream,
    )
