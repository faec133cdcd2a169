"""The strong proof: does the answer to one over-limit prompt change with what ran before it?

Filler traffic, the prompt, other filler traffic, the same prompt again. An engine that answers from pages
which nobody wrote for the prompt gives two answers; one that refuses gives none that could be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdguard.probe.canary import distance
from pdguard.probe.confirm import confirmed
from pdguard.probe.context import Context
from pdguard.probe.exchange import answering, exchange, no_answer
from pdguard.probe.interface import Ask, Length, Measure, Seen, Step, StepResult, Verdict
from pdguard.probe.over_pool import judged, release_closed
from pdguard.probe.sending import inconclusive, watched
from pdguard.probe.state import read_all

FILLERS = 8
FILLER_TOKENS = 16_384
"""The longest filler; a longer one would prove no more."""

NEW_TOKENS = 12
SLOW_SECONDS = 30.0
"""An admitted prompt that takes longer ends the proof: a service that slow is left alone."""
SHORT = 2 * FILLERS + 2
"""Admitted prompts of one proof: the fillers, and the control before and after them."""

_OVER_SEED, _CONTROL_SEED = 5, 300
_TRAFFIC_SEEDS = (1000, 2000)


def filler_length(length: Length) -> int:
    """Tokens of a filler: half of what both halves admit, so that room for the answer is left beside it."""
    return max(1, min(FILLER_TOKENS, min(length.prefill_limit, length.decode_limit) // 2))


def cost(length: Length) -> tuple[int, int]:
    """Requests and tokens of one whole proof, each counted once whoever it is sent to."""
    return SHORT + 2, SHORT * filler_length(length) + 2 * length.tokens


@dataclass(frozen=True, slots=True)
class _Over:
    """One answer to the over-limit prompt."""

    one: Seen
    result: StepResult


async def run(step: Step, context: Context) -> StepResult:
    """Play the whole sequence once. Raises BudgetSpent."""
    length = step.length
    if length is None:
        return inconclusive(step, "no length lies between the limits")
    control = await _admitted(step, context, length, _CONTROL_SEED)
    if isinstance(control, str):
        return inconclusive(step, f"the control, an admitted prompt, got no answer that counts ({control})")
    overs: list[_Over] = []
    for seed in _TRAFFIC_SEEDS:
        for number in range(FILLERS):
            sent = await _admitted(step, context, length, seed + number)
            if isinstance(sent, str):
                return inconclusive(step, f"an admitted prompt got no answer that counts ({sent})")
        over = await _over(step, context, length)
        overs.append(over)
        if not over.one.answered:
            return _no_answer(step, over)
    again = await _admitted(step, context, length, _CONTROL_SEED)
    if isinstance(again, str):
        return inconclusive(step, f"the control, an admitted prompt, was not answered twice ({again})")
    return _compare(step, control, again, *overs)


def _no_answer(step: Step, over: _Over) -> StepResult:
    result = over.result
    if result.verdict in (Verdict.INCONCLUSIVE, Verdict.EXPOSED):
        return result
    return StepResult(
        step,
        Verdict.INDEPENDENT,
        f"there is no answer to compare: {result.verdict.value} ({result.reason})",
        result.halves,
    )


def _compare(step: Step, control: Seen, again: Seen, first: _Over, second: _Over) -> StepResult:
    far = distance(first.one, second.one)
    steady = distance(control, again).same
    measures = [
        Measure("answer 1: hash", first.one.digest[:8]),
        Measure("answer 2: hash", second.one.digest[:8]),
        Measure("positions that differ", far.positions),
        Measure("control steady", steady),
    ]
    if far.first is not None:
        measures.append(Measure("first difference at", far.first))
    halves, verdict = second.result.halves, second.result.verdict
    if verdict is not Verdict.EXPOSED:
        return StepResult(step, verdict, second.result.reason, halves, tuple(measures))
    if not steady:
        # What the verdict on a single answer says stands by itself; only the comparison is void.
        reason = f"{second.result.reason}; the control varies by itself, so the two answers say nothing more"
    elif far.same:
        reason = f"{second.result.reason}; answered, and the same after other traffic"
    else:
        reason = f"the answer to the same prompt depends on what ran before it; {second.result.reason}"
    return StepResult(step, Verdict.EXPOSED, reason, halves, tuple(measures))


async def _admitted(step: Step, context: Context, length: Length, seed: int) -> Seen | str:
    seen = await _send(step, context, filler_length(length), seed, length.rank, to_the_end=True)
    one = answering(seen, step.route)
    if not one.answered:
        return no_answer(seen) or "an empty answer"
    return (
        one if one.ended_after <= SLOW_SECONDS else f"it took {one.ended_after:.0f} s, too long for a proof"
    )


async def _over(step: Step, context: Context, length: Length) -> _Over:
    before = await read_all(context, watched(step.route), metrics=False, limit=context.wait)
    seen = await _send(step, context, length.tokens, _OVER_SEED, length.rank)
    result = await confirmed(context, judged(step, seen))
    return _Over(answering(seen, step.route), await release_closed(context, result, before))


async def _send(
    step: Step, context: Context, tokens: int, seed: int, rank: int | None, *, to_the_end: bool = False
) -> Mapping[str, Seen]:
    route = step.route
    ask = Ask(
        api=step.api,
        length=tokens,
        rid=context.rid(),
        seed=seed,
        new_tokens=NEW_TOKENS,
        bootstrap=None if route.router is not None else context.bootstrap(route, rank),
        rank=rank,
    )
    return await exchange(context, route, ask, to_the_end=to_the_end)
