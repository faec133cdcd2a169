"""What an operator asks a probe to do, checked before anything is read or sent."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from pdguard.cluster.links import nearest
from pdguard.errors import InputError
from pdguard.facts.observed import ARROW
from pdguard.probe.interface import MAX_REQUESTS, MAX_SECONDS, MAX_TOKENS, MAX_WAIT, Api, Budget


@dataclass(frozen=True, slots=True)
class Wanted:
    """The probes that are asked for, the ways they take, and what they may spend.

    Routers are always gone through where there are any; `direct` adds the pairs behind them. `routers` and
    `pairs` (`p0→d0`, or `p0->d0`, which are met directly) narrow a run to what they name. `apis` are the
    paths that prompts at the limits take; all other probes take /generate. `streams` holds False for answers
    in one piece, True for streamed ones. Raises InputError for nothing asked, for paths that would not be
    taken, and for a budget too large.
    """

    over_pool: bool = False
    abort: bool = False
    pairing: bool = False
    canary: bool = False
    staging: bool = False
    direct: bool = False
    accept_exposure: bool = False
    apis: tuple[Api, ...] = (Api.GENERATE,)
    streams: tuple[bool, ...] = (False, True)
    routers: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if not (self.over_pool or self.abort or self.pairing or self.canary or self.staging):
            raise InputError(
                "no probe is named",
                expected="one or more of --over-pool, --abort, --pairing, --canary, --staging",
            )
        if not self.over_pool and any(api is not Api.GENERATE for api in self.apis):
            raise InputError(
                "--api goes with --over-pool", expected="the other probes without it: they take /generate"
            )
        if not self.apis or not self.streams:
            raise InputError("nothing is left to send", expected="at least one path, streamed or not")
        for option, value, most in (
            ("--max-requests", self.budget.requests, MAX_REQUESTS),
            ("--max-tokens", self.budget.tokens, MAX_TOKENS),
            ("--max-seconds", self.budget.seconds, MAX_SECONDS),
            ("--wait", self.budget.wait, MAX_WAIT),
        ):
            if not (math.isfinite(value) and 0 < value <= most):
                expected = f"above 0, at most {plainly(most)}"
                raise InputError(f"{option} is out of range", expected=expected, found=plainly(value))

    @property
    def pair_names(self) -> tuple[str, ...]:
        """`pairs` with the arrow that pairs are named with."""
        return tuple(dict.fromkeys(p.replace("->", ARROW) for p in self.pairs))


def plainly(value: float) -> str:
    """`16,000,000`, `0.5`: a figure of a budget without an exponent."""
    whole = math.isfinite(value) and value == int(value)
    return f"{int(value):,}" if whole else f"{value:,g}"


def check_named(kind: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise InputError for the first of `names` that is none of the `known` routers or pairs."""
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise InputError(
                f"there is no {kind} of that name",
                expected=f"a {kind} of the cluster file",
                found=name[:64],
                todo=f"Did you mean {near}?" if near else "",
            )
