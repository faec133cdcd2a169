"""Windows of prompt lengths: what one half of a pair rejects and the other admits, in tokens.

An engine rejects a prompt of `limit` tokens or more. Each DP rank has a limit of its own, and the router
decides which ranks meet: the widest window over all ranks counts.
"""

from __future__ import annotations

from pdguard.facts.deriving import derive, missing_because
from pdguard.facts.interface import Fact, FactSet


def rank_limits(facts: FactSet) -> tuple[int, int] | None:
    """(smallest, largest) admission limit over the DP ranks of an engine, or None where not known.

    Only the first rank's limit is told by the engine. The others' follow from their pools where the formula
    reproduces the first one; where it does not (context-parallel or sliding-window pools) only the told limit
    is used.
    """
    limit = facts.integer("admission_limit")
    pools = [p for p in facts.items("pools") or () if isinstance(p, int)]
    context = facts.integer("context_length")
    if limit is None:
        return None
    if context is None or len(pools) < 2 or _limit(context, pools[0]) != limit:
        return limit, limit
    limits = [_limit(context, p) for p in pools]
    return min(limits), max(limits)


def _limit(context: int, pool: int) -> int:
    return min(context - 1, pool - 1) - 5


def derive_windows(facts: FactSet, p: FactSet, d: FactSet) -> None:
    """Add the window facts of a pair of prefill `p` and decode `d`."""
    names = ("over_read_lengths", "mirror_lengths", "exposed_lengths", "longest_prompt")
    one, two = rank_limits(p), rank_limits(d)
    if one is None or two is None:
        half = p if one is None else d
        why = missing_because("engine", half, ("admission_limit",))
        for name in (*names, "never_admitted_lengths", "safe_context"):
            facts.miss(name, why.reason, why.how)
        return
    limits = [p.get("admission_limit"), d.get("admission_limit")]
    _window(facts, "over_read", one[0], two[1], limits)
    _window(facts, "mirror", two[0], one[1], limits)
    derive(facts, "longest_prompt", min(one[1], two[1]) - 1, limits)
    _exposed(facts, p, one[0], two[1], limits)
    _never_admitted(facts, d, min(one[1], two[1]))
    _safe_context(facts, p, d)


def _window(facts: FactSet, name: str, low: int, high: int, inputs: list[Fact | None]) -> None:
    """Lengths N with low <= N < high: rejected where the limit is `low`, admitted where it is `high`."""
    lengths = max(0, high - low)
    derive(facts, f"{name}_lengths", lengths, inputs)
    if lengths:
        derive(facts, f"{name}_from", low, inputs)
        derive(facts, f"{name}_to", high - 1, inputs)


def _exposed(facts: FactSet, p: FactSet, low: int, high: int, inputs: list[Fact | None]) -> None:
    """Of the over-read window, what prefill's tokenizer lets through: the rest it refuses by itself."""
    context, reserved = p.integer("context_length"), p.integer("reserved_tokens")
    if high > low and context is not None:
        high = min(high, context - (reserved or 0))
        inputs = [*inputs, p.get("context_length")]
    derive(facts, "exposed_lengths", max(0, high - low), inputs)


def _never_admitted(facts: FactSet, d: FactSet, limit: int) -> None:
    """Prompts below both limits that decode never places, since it keeps tokens back for decoding."""
    pool, reserved = d.integer("pool"), d.integer("reserved_decode_tokens")
    if pool is None or reserved is None:
        why = missing_because("engine", d, ("pool", "reserved_decode_tokens"))
        facts.miss("never_admitted_lengths", why.reason, why.how)
        return
    first = max(1, pool - reserved + 1)
    inputs = [d.get("pool"), d.get("reserved_decode_tokens"), d.get("admission_limit")]
    lengths = max(0, limit - first)
    derive(facts, "never_admitted_lengths", lengths, inputs)
    if lengths:
        derive(facts, "never_admitted_from", first, inputs)


def _safe_context(facts: FactSet, p: FactSet, d: FactSet) -> None:
    """The longest context length that, set on both roles, every pool can hold with decode's reserve."""
    names = ("pool", "context_length")
    known = [half.integer(n) for half in (p, d) for n in names]
    if None in known:
        half = p if any(p.get(n) is None for n in names) else d
        why = missing_because("engine", half, names)
        facts.miss("safe_context", why.reason, why.how)
        return
    sizes = [n for n in known if n is not None]
    pool, reserved = d.integer("pool") or 0, d.integer("reserved_decode_tokens") or 0
    # The longest prompt that a context of C admits is C - 7.
    fits = min(*sizes, max(1, pool - reserved + 7))
    derive(facts, "safe_context", fits, [half.get(n) for half in (p, d) for n in names])
