"""What a step costs at the worst, and whether a budget allows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pdguard.probe import abort, calibrate, canary, over_pool, staging
from pdguard.probe.context import patience
from pdguard.probe.interface import (
    MAX_REQUESTS,
    MAX_SECONDS,
    MAX_TOKENS,
    Api,
    Budget,
    Danger,
    Kind,
    Length,
    Route,
    Side,
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


def lacking(cost: Cost, budget: Budget) -> tuple[Short, ...]:
    """What is short for `cost`; empty where the budget allows it."""
    every = (
        Short("--max-tokens", "tokens", budget.tokens, MAX_TOKENS),
        Short("--max-seconds", "seconds", budget.seconds, MAX_SECONDS),
        Short("--max-requests", "requests", budget.requests, MAX_REQUESTS),
    )
    return tuple(short for short in every if getattr(cost, short.unit) > short.given)


def too_small(whole: Cost, budget: Budget, narrower: str) -> tuple[str, str]:
    """Why a budget does not suffice for `whole`, and every option that is needed so that it does.

    `narrower` is an option that asks for less, or empty.
    """
    shorts = lacking(whole, budget)
    needs = {short: math.ceil(getattr(whole, short.unit)) for short in shorts}
    given = " and ".join(f"{plainly(short.given)} {short.unit}" for short in shorts)
    need = " and ".join(f"{needs[short]:,} {short.unit}" for short in shorts)
    why = f"the budget of {given} is too small: all would need {need} at the worst"
    beyond = [short for short in shorts if needs[short] > short.hard]
    if beyond:
        most = ", ".join(f"{short.option} goes no higher than {plainly(short.hard)}" for short in beyond)
        less = f"{narrower} or --stream no" if narrower else "--stream no"
        return why, f"narrow the run with {less}; {most}"
    options = " ".join(f"{short.option} {needs[short]}" for short in shorts)
    return why, f"{options}, or {narrower}" if narrower else options


def cost_of(kind: Kind, route: Route, length: Length, danger: Danger, wait: float) -> Cost:
    """The worst case of one step; `wait` is how long one answer is waited for, in seconds."""
    times = _times(route)
    # A router tries again only when the try before has ended: no more than one prompt is held at a time.
    held = length.tokens if danger is not Danger.ORDINARY else 0
    admitted = kind is Kind.OVER_POOL and length.side is Side.ADMITTED
    each = patience(wait) if admitted else _longest(route, wait)
    release = over_pool.RELEASE_SECONDS if held or admitted else 0.0
    if kind is Kind.ABORT:
        # Each try waits for the transfer to begin, and then for both halves to be told.
        seconds = abort.OVERHEAD_SECONDS + abort.TRIES * 2 * wait
        return Cost(times * abort.TRIES, times * abort.TRIES * length.tokens, seconds, held)
    if kind is Kind.STAGING:
        asks, tokens = staging.cost(length)
        seconds = _slowest(staging.SHORT, staging.SLOW_SECONDS, wait) + (asks - staging.SHORT) * (
            each + release
        )
        return Cost(times * asks, times * tokens, seconds, held)
    return Cost(times, times * length.tokens, each + release, held)


def canary_cost(route: Route, length: Length, others: int, wait: float) -> Cost:
    """Known answers: each twice before, once after, and one for each of `others` (steps and waits)."""
    sizes = [min(n, length.tokens) for n in canary.LENGTHS]
    asks = 3 * len(sizes) + others
    tokens = 3 * sum(sizes) + others * max(sizes)
    seconds = _slowest(asks, canary.SLOW_SECONDS, wait)
    return Cost(_times(route) * asks, _times(route) * tokens, seconds, 0)


def _slowest(asks: int, slow: float, wait: float) -> float:
    """Seconds of `asks` admitted prompts, of which the first that takes longer than `slow` is the last."""
    return asks * slow + max(0.0, patience(wait) - slow)


def calibration(route: Route, wait: float) -> Cost:
    """What it takes to learn how many tokens a text is, once a route and path."""
    words = (calibrate.FEW, calibrate.MANY)
    tokens = sum(words) * WORD_TOKENS
    seconds = _slowest(len(words), calibrate.SLOW_SECONDS, wait)
    return Cost(_times(route) * len(words), _times(route) * tokens, seconds, 0)


def served(steps: Sequence[Step]) -> tuple[int, int]:
    """How many prompts the engines really serve if all goes well, and the tokens of the longest."""
    counts: list[tuple[int, int]] = []
    texts = {(s.route.name, s.api) for s in steps if s.kind is Kind.OVER_POOL and s.api is not Api.GENERATE}
    for step in steps:
        length = step.length
        if length is None:
            continue
        if step.kind is Kind.OVER_POOL and length.side is Side.ADMITTED:
            counts.append((1, length.tokens))
        elif step.kind is Kind.ABORT:
            counts.append((abort.TRIES, length.tokens))
        elif step.kind is Kind.STAGING:
            counts.append((staging.SHORT, staging.filler_length(length)))
        elif step.kind is Kind.CANARY:
            counts.append((step.requests // _times(step.route), min(canary.LENGTHS[-1], length.tokens)))
    counts += [(2, calibrate.MANY * WORD_TOKENS) for _ in texts]
    return sum(count for count, _ in counts), max((tokens for _, tokens in counts), default=0)


def _times(route: Route) -> int:
    return route.tries * (1 if route.router is not None else 2)


def _longest(route: Route, wait: float) -> float:
    waiting = route.waiting
    return wait if waiting is None or waiting <= 0 else min(wait, waiting * route.tries)
