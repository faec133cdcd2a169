"""Windows of prompt lengths: what one half of a pair rejects and the other admits, in tokens.

An engine rejects a prompt of `limit` tokens or more, unless it truncates (then it rejects nothing). Each DP
rank has a limit of its own, and the router decides which ranks meet: the widest window over all ranks counts.
"""

from __future__ import annotations

from pdguard.facts.deriving import derive, missing_because
from pdguard.facts.interface import Fact, FactSet

NEEDS = ("admission_limit", "context_length", "auto_truncate")
WINDOWS = ("over_read_lengths", "mirror_lengths", "exposed_lengths", "longest_prompt")
RANKS_UNKNOWN = "the limits of its other DP ranks are not known"


def rank_limits(facts: FactSet) -> tuple[int, int] | None:
    """(smallest, largest) admission limit over the DP ranks of an engine, or None where not known.

    Only the first rank's limit is told by the engine. The others' follow from their pools where the formula
    reproduces the first one; where it does not (context-parallel or sliding-window pools) they are known only
    if all pools are the same.
    """
    limit, ranks = facts.integer("admission_limit"), facts.integer("dp_size")
    pools = [p for p in facts.items("pools") or () if isinstance(p, int)]
    context = facts.integer("context_length")
    if limit is None or ranks is None:
        return None
    if ranks == 1 or (len(pools) == ranks and len(set(pools)) == 1):
        return limit, limit
    if len(pools) != ranks or context is None or _limit(context, pools[0]) != limit:
        return None
    limits = [_limit(context, p) for p in pools]
    return min(limits), max(limits)


def _limit(context: int, pool: int) -> int:
    return min(context - 1, pool - 1) - 5


def derive_windows(facts: FactSet, p: FactSet, d: FactSet) -> None:
    """Add the window facts of a pair of prefill `p` and decode `d`."""
    one, two = rank_limits(p), rank_limits(d)
    lacking = next(
        (h for h in (p, d) if rank_limits(h) is None or any(h.get(n) is None for n in NEEDS)), None
    )
    if lacking is not None or one is None or two is None:
        half = lacking or p
        known = all(half.get(n) is not None for n in NEEDS)
        why = missing_because("engine", half, (*NEEDS, "dp_size"))
        for name in (*WINDOWS, "never_admitted_lengths", "safe_context", "cut_differs", "unwritten_tokens"):
            facts.miss(name, RANKS_UNKNOWN if known else why.reason, "" if known else why.how)
        return
    inputs = [half.get(n) for n in NEEDS for half in (p, d)]
    cuts = bool(p.flag("auto_truncate")), bool(d.flag("auto_truncate"))
    # A half that truncates admits whatever comes; the window then ends where prompts end.
    end = max(p.integer("context_length") or 0, d.integer("context_length") or 0)
    _window(facts, "over_read", one[0], 0 if cuts[0] else end if cuts[1] else two[1], inputs)
    _window(facts, "mirror", two[0], 0 if cuts[1] else end if cuts[0] else one[1], inputs)
    derive(facts, "longest_prompt", min(one[1], two[1]) - 1, inputs)
    derive(facts, "cut_differs", cuts[0] != cuts[1] or (cuts[0] and {*one} | {*two} != {one[0]}), inputs)
    # A prefill that truncates writes no more than its limit, whatever decode has taken in and will read.
    read = two[1] if cuts[1] else two[1] - 1
    derive(facts, "unwritten_tokens", max(0, read - one[0]) if cuts[0] else 0, inputs)
    _exposed(facts, p, inputs)
    _never_admitted(facts, d, min(one[1], two[1]))
    _safe_context(facts, p, d, (one[0], two[0]))


def _window(facts: FactSet, name: str, low: int, high: int, inputs: list[Fact | None]) -> None:
    """Lengths N with low <= N < high: rejected where the limit is `low`, admitted where it is `high`."""
    lengths = max(0, high - low)
    derive(facts, f"{name}_lengths", lengths, inputs)
    if lengths:
        derive(facts, f"{name}_from", low, inputs)
        derive(facts, f"{name}_to", high - 1, inputs)


def _exposed(facts: FactSet, p: FactSet, inputs: list[Fact | None]) -> None:
    """Of the over-read window, what prefill's tokenizer lets through: the rest it refuses by itself."""
    low, last = facts.integer("over_read_from"), facts.integer("over_read_to")
    context, reserved = p.integer("context_length") or 0, p.integer("reserved_tokens") or 0
    lengths = 0 if low is None or last is None else max(0, min(last + 1, context - reserved) - low)
    derive(facts, "exposed_lengths", lengths, inputs)


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


def _safe_context(facts: FactSet, p: FactSet, d: FactSet, limits: tuple[int, int]) -> None:
    """The longest context length that, set on both roles, every pool can hold with decode's reserve.

    What an engine can hold is told by its limit, which knows of sliding windows and context parallelism where
    the pool does not: a limit below context less 6 is the pool's, less 6.
    """
    fits = []
    for half, limit in zip((p, d), limits, strict=True):
        context = half.integer("context_length") or 0
        fits.append(context if limit >= context - 6 else limit + 6)
    pool, reserved = d.integer("pool"), d.integer("reserved_decode_tokens")
    if pool is None or reserved is None:
        why = missing_because("engine", d, ("pool", "reserved_decode_tokens"))
        facts.miss("safe_context", why.reason, why.how)
        return
    # The longest prompt that a context of C admits is C - 7.
    fits.append(max(1, pool - reserved + 7))
    inputs = [half.get(n) for half in (p, d) for n in ("admission_limit", "context_length")]
    derive(facts, "safe_context", min(fits), [*inputs, d.get("pool"), d.get("reserved_decode_tokens")])
