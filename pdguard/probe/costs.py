"""What a step costs at the worst, and whether a budget allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdguard.probe import abort, calibrate, canary, over_pool, pairing, staging
from pdguard.probe.interface import (
    MAX_REQUESTS,
    MAX_SECONDS,
    MAX_TOKENS,
    Budget,
    Danger,
    Kind,
    LeftOut,
    Length,
    Route,
    Step,
)
from pdguard.probe.wanted import plainly

WORD_TOKENS = 4
"""Tokens that a word of a text counts as before it is known, at the most."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests and prompt tokens sent, seconds taken, tokens of KV that may be held meanwhile."""

    requests: int
    tokens: int
    seconds: float
    held: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            max(self.held, other.held),
        )

    @staticmethod
    def of(step: Step) -> Cost:
        """The worst case that a step was given."""
        return Cost(step.requests, step.tokens, step.seconds, step.held_tokens)


@dataclass(frozen=True, slots=True)
class Short:
    """The part of a budget that does not suffice, with its option and the hard limit behind it."""

    option: str
    unit: str
    given: float
    hard: float

    def told(self, what: str, whole: Cost) -> LeftOut:
        """`what` is left out; `whole` is what everything would cost."""
        need = math.ceil(getattr(whole, self.unit))
        given, hard = plainly(self.given), plainly(self.hard)
        why = f"the budget of {given} {self.unit} is too small: all would need {need:,} at the worst"
        if need > self.hard:
            return LeftOut(what, why, f"narrow the run; {self.option} goes no higher than {hard}")
        return LeftOut(what, why, f"{self.option} {need}")


def allowed(cost: Cost, budget: Budget) -> Short | None:
    """None where the budget allows it, otherwise what is short."""
    for short, needed in (
        (Short("--max-requests", "requests", budget.requests, MAX_REQUESTS), cost.requests),
        (Short("--max-tokens", "tokens", budget.tokens, MAX_TOKENS), cost.tokens),
        (Short("--max-seconds", "seconds", budget.seconds, MAX_SECONDS), cost.seconds),
    ):
        if needed > short.given:
            return short
    return None


def cost_of(kind: Kind, route: Route, length: Length, danger: Danger, wait: float) -> Cost:
    """The worst case of one step; `wait` is how long one answer is waited for, in seconds."""
    times = _times(route)
    # A router tries again only when the try before has ended: no more than one prompt is held at a time.
    held = length.tokens if danger is not Danger.ORDINARY else 0
    each = _longest(route, wait)
    release = over_pool.RELEASE_SECONDS if held else 0.0
    if kind is Kind.PAIRING:
        release = pairing.RELEASE_SECONDS
    if kind is Kind.ABORT:
        # Each try waits for the transfer to begin, and then for both halves to be told.
        seconds = abort.OVERHEAD_SECONDS + abort.TRIES * 2 * wait
        return Cost(times * abort.TRIES, times * abort.TRIES * length.tokens, seconds, held)
    if kind is Kind.STAGING:
        asks, tokens = staging.cost(length)
        return Cost(times * asks, times * tokens, asks * each + 2 * release, held)
    return Cost(times, times * length.tokens, each + release, held)


def canary_cost(route: Route, length: Length, others: int, wait: float) -> Cost:
    """Known answers: each twice before, once after, and one for each of `others` (steps and waits)."""
    sizes = [min(n, length.tokens) for n in canary.LENGTHS]
    asks = 3 * len(sizes) + others
    tokens = 3 * sum(sizes) + others * max(sizes)
    return Cost(_times(route) * asks, _times(route) * tokens, min(wait, 1.0) * asks, 0)


def calibration(route: Route) -> Cost:
    """What it takes to learn how many tokens a text is, once a route and path."""
    words = (calibrate.FEW, calibrate.MANY)
    tokens = sum(words) * WORD_TOKENS
    return Cost(_times(route) * len(words), _times(route) * tokens, 0.0, 0)


def _times(route: Route) -> int:
    return route.tries * (1 if route.router is not None else 2)


def _longest(route: Route, wait: float) -> float:
    waiting = route.waiting
    return wait if waiting is None or waiting <= 0 else min(wait, waiting * route.tries)
