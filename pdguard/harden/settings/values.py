"""Values of settings that are computed from facts, and whether the present value will do.

The context length. Let a pool hold P tokens. In every release examined (0.5.19 to 0.5.23) the scheduler with
a context C rejects a prompt of N tokens where N >= min(C, P) - 6; the tokenizer, which comes first, refuses
it where N + R >= C; R is what it reserves for speculative decoding, mostly 0. With

    C = P - 6 + R   (and never above P, nor above any context in use)

every N that a pool rejects is refused by the tokenizer, on both halves and before any of the two has done
anything. The schedulers then all have the same limit, C - 6, so no length is rejected by one half alone.
Decode also keeps a reserve D for the answer: a prompt is placed only where N + D <= P, and the longest prompt
that passes is C - 7, so C <= P - D + 7 on decode.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pdguard.facts.deriving import missing_because
from pdguard.facts.environment import parse_environment
from pdguard.facts.interface import FactSet, Scalar, Subject
from pdguard.facts.windows import RANKS_UNKNOWN, rank_limits
from pdguard.policy.evaluate import role_of

SLACK = 6
"""Tokens between a context or pool and the admission limit that follows from it."""

CALL_MARGIN = 5.0
"""Seconds that T_hold leaves for the way of the abort, on top of one transfer call."""

CAPPED_TOKENS = 65_536
"""Tokens that one capped transfer call carries at most: half of the length that counts as extreme."""


@dataclass(frozen=True, slots=True)
class Computed:
    """`value` is empty where there is none, and `why` is then the reason; `good` is None where not known."""

    value: str
    why: str
    good: bool | None = False


class Audience:
    """The engines that a value has to suit, and the numbers of policy."""

    def __init__(self, engines: Sequence[Subject], policy: Mapping[str, Scalar]) -> None:
        self.engines, self.policy = engines, policy

    def number(self, name: str) -> float:
        """A number of policy."""
        return float(self.policy[name])

    @functools.cached_property
    def context(self) -> Computed:
        """The one context length for all of them."""
        return fitting_context(self.engines)

    @functools.cached_property
    def slowest_call(self) -> tuple[float, bool, str]:
        """The longest that one call of any prefill may take, whether calls are capped, and why."""
        return _slowest_call(self.engines)


def fitting_context(engines: Sequence[Subject]) -> Computed:
    """The one context length for all `engines`: the longest that makes the tokenizer refuse first."""
    reserves = [e.facts.integer("reserved_tokens") or 0 for e in engines]
    reserve = min(reserves, default=0)
    rooms: list[tuple[int, str]] = []
    for engine in engines:
        room = _room(engine, reserve)
        if isinstance(room, str):
            return Computed("", f"{engine.name}: {room}", None)
        rooms.append(room)
    if not rooms:
        return Computed("", "there is no pair of a prefill and a decode", None)
    length, why = min(rooms)
    if length <= SLACK + 1:
        return Computed("", f"{why}: no prompt would be left", None)
    return Computed(str(length), f"{why}; the longest prompt is then {_longest(length, reserves):,} tokens")


def _longest(length: int, reserves: Sequence[int]) -> int:
    return min(length - SLACK, length - max(reserves)) - 1


def _room(engine: Subject, reserve: int) -> tuple[int, str] | str:
    """The longest context that this engine allows, with the reason; a bare text says what is missing."""
    facts = engine.facts
    context, limit = facts.integer("context_length"), _smallest_limit(facts)
    if context is None or limit is None:
        known = context is not None and facts.get("admission_limit") is not None
        return (
            RANKS_UNKNOWN
            if known
            else missing_because("engine", facts, ("context_length", "admission_limit", "dp_size")).reason
        )
    pool = facts.integer("pool")
    rooms = [(context, f"{engine.name} has a context of {context:,}")]
    holds = limit + SLACK if limit < context - SLACK else pool
    if holds is not None and (limit < context - SLACK or holds >= context):
        room = min(holds, holds - SLACK + reserve)
        rooms.append((room, f"the pool of {engine.name} holds {holds:,} and rejects from {holds - SLACK:,}"))
    if role_of(engine) == "decode":
        kept = facts.integer("reserved_decode_tokens")
        if pool is None or kept is None:
            return missing_because("engine", facts, ("pool", "reserved_decode_tokens")).reason
        why = f"the pool of {engine.name} holds {pool:,} and keeps {kept:,} for the answer"
        rooms.append((pool - kept + SLACK + 1, why))
    return min(rooms)


def _smallest_limit(facts: FactSet) -> int | None:
    limits = rank_limits(facts)
    return facts.integer("rank_limit") if limits is None else limits[0]


def _context(engine: Subject, audience: Audience) -> Computed:
    found = audience.context
    if not found.value:
        return found
    return Computed(found.value, found.why, engine.facts.integer("context_length") == int(found.value))


def _t_hold(engine: Subject, audience: Audience) -> Computed:
    """Long enough for a call that is under way, short enough not to starve decode."""
    facts = engine.facts
    least, most = audience.number("t_hold_min"), audience.number("t_hold_max")
    bound, capped, why = audience.slowest_call
    need = bound + max(CALL_MARGIN, bound if capped else 0.0) if bound else 0.0
    value = max(least, math.ceil(need))
    if value > most:
        return Computed(
            "",
            f"{why}, so T_hold would have to be {value:g} s, above the advised {most:g} s;"
            " lower MC_TRANSFER_TIMEOUT on prefill first",
        )
    why = f"{why}; advised are {least:g} to {most:g} s" if why else f"advised are {least:g} to {most:g} s"
    return Computed(f"{value:g}", why, _hold_is_good(facts, bound, least, most))


def _slowest_call(engines: Sequence[Subject]) -> tuple[float, bool, str]:
    longest, capped, why = 0.0, False, ""
    for engine in engines:
        facts = engine.facts
        if role_of(engine) != "prefill" or facts.text("backend") not in ("mooncake", "ascend"):
            continue
        known = facts.number("transfer_timeout")
        assumed = parse_environment({}, None).facts["transfer_timeout"]
        bound = known if known is not None else float(assumed) if isinstance(assumed, int | float) else 0.0
        if bound > longest:
            longest = bound
            why = f"one call of {engine.name} may take {bound:g} s" + ("" if known else " (by default)")
        capped = capped or (facts.integer("batch_cap") or 0) > 0
    return longest, capped, why + (", and capped calls follow one another" if capped and why else "")


def _hold_is_good(facts: FactSet, bound: float, least: float, most: float) -> bool | None:
    kind, seconds, scope = facts.text("t_hold_kind"), facts.number("t_hold"), facts.text("hold_scope")
    if kind is not None and kind != "finite":
        return False
    if seconds is None or scope is None:
        return None
    if scope == "decode aborts":  # most holds end by the clock
        return max(least, 5.0) <= seconds <= most and seconds > bound
    return 5.0 <= seconds <= 3600.0 and seconds >= bound


def _batch_cap(engine: Subject, audience: Audience) -> Computed:
    """Pages in one call, from the page size; of no use where prompts are not extreme."""
    facts = engine.facts
    page, limit, cap = (
        facts.integer("page_size"),
        facts.integer("admission_limit"),
        facts.integer("batch_cap"),
    )
    if page is None or limit is None:
        return Computed("", missing_because("engine", facts, ("page_size", "admission_limit")).reason, None)
    value = max(1, CAPPED_TOKENS // page)
    why = f"{value:,} pages of {page:,} tokens are {value * page:,} tokens in one call"
    if limit <= audience.number("extreme_context") or (cap is not None and cap > 0):
        return Computed(str(value), why, True)
    return Computed(str(value), why, None if cap is None else False)


COMPUTED: Mapping[str, Callable[[Subject, Audience], Computed]] = {
    "context-that-fits": _context,
    "hold-that-outlasts-a-call": _t_hold,
    "pages-in-one-call": _batch_cap,
}
"""What `value: {computed: …}` of a setting file may name."""
