"""What every step is given: the wire, the budget, request ids and rooms, and a look at each server's load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdguard.errors import PdguardError
from pdguard.facts._fetch import Fetcher
from pdguard.probe.interface import Api, Ask, Bootstrap, Budget, Route, Target
from pdguard.probe.wire import Wire

if TYPE_CHECKING:
    from pdguard.probe.calibrate import Scale

RID = "pdguard-probe"

TO_THE_END = 120.0
"""Seconds that an answer to an admitted prompt is waited for, at least: to close it sooner is to abort it."""


def patience(wait: float) -> float:
    """Seconds that an admitted prompt gets where others get `wait`."""
    return max(wait, TO_THE_END)


class BudgetSpent(PdguardError):
    """A request would go beyond the run's budget; it was not sent."""


@dataclass(slots=True)
class Ledger:
    """What a run has spent of its budget, and the only way to spend more.

    `requests` counts what a router may make of those that were `sent`.
    """

    budget: Budget
    requests: int = 0
    tokens: int = 0
    sent: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds that are left, never below zero."""
        return max(0.0, self.budget.seconds - self.seconds)

    def spend(self, requests: int, tokens: int) -> None:
        """Book requests before they are sent. Raises BudgetSpent, and books nothing, where too many."""
        for what, now, more, most in (
            ("requests", self.requests, requests, self.budget.requests),
            ("tokens", self.tokens, tokens, self.budget.tokens),
        ):
            if now + more > most:
                raise BudgetSpent(
                    f"the budget of {most:,} {what} is spent", found=f"{now:,} sent, {more:,} more wanted"
                )
        if self.left <= 0:
            raise BudgetSpent(f"the budget of {self.budget.seconds:g} s is spent")
        self.requests += requests
        self.tokens += tokens


@dataclass(slots=True)
class Context:
    """One run's means. `run` is a short random word that its request ids carry.

    `scales` keeps what was found out about texts, by route and path: a scale, or why there is none;
    `models` the name of the model that a server told.
    """

    wire: Wire
    fetcher: Fetcher
    ledger: Ledger
    run: str
    progress: Callable[[str], None]
    scales: dict[tuple[str, Api], Scale | str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    @property
    def wait(self) -> float:
        """Seconds that the next answer may be waited for."""
        return min(self.ledger.budget.wait, max(0.1, self.ledger.left))

    @property
    def to_the_end(self) -> float:
        """Seconds that the answer to an admitted prompt may be waited for."""
        return min(patience(self.ledger.budget.wait), max(0.1, self.ledger.left))

    def rid(self) -> str:
        """A request id that nobody else uses and that an operator recognises in an engine's log."""
        self._count += 1
        return f"{RID}-{self.run}-{self._count:03d}"

    def bootstrap(self, route: Route, rank: int | None) -> Bootstrap:
        """A fresh room for a direct request; with several DP ranks its number chooses the rank (or 0)."""
        room = random.getrandbits(62)
        room += (rank or 0) - room % max(1, route.dp_size)
        return Bootstrap(
            route.bootstrap_host, route.bootstrap_port, room if room >= 0 else room + route.dp_size
        )

    def book(self, route: Route, *asks: Ask) -> None:
        """Book requests as often as the route's router may send them."""
        self.ledger.spend(len(asks) * route.tries, sum(a.length for a in asks) * route.tries)
        self.ledger.sent += len(asks)

    @staticmethod
    def halves(route: Route) -> tuple[Target, ...]:
        """Whom a request is sent to: the router, or prefill and decode."""
        if route.router is not None:
            return (route.router,)
        return tuple(t for t in (route.prefill, route.decode) if t is not None)
