"""The counters of one /metrics page that a probe compares before and after a request.

Counting is that of `pdguard.facts.metrics`: the largest over the ranks of one group, added up over DP ranks.
A page is read while it arrives; only the lines of the families below are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdguard.facts.metrics import (
    ABORTED,
    FAILED,
    HELD,
    RELEASES,
    Family,
    LineFilter,
    counted,
    parse_lines,
)

FAILED_BOOTSTRAPS = "sglang:num_bootstrap_failed_reqs_total"
GENERATED = "sglang:generation_tokens_total"
HOLD_SECONDS = "sglang:decode_deferred_kv_release_seconds_sum"
HOLD_COUNT = "sglang:decode_deferred_kv_release_seconds_count"
_NAMES = (ABORTED, FAILED, FAILED_BOOTSTRAPS, GENERATED, RELEASES, HOLD_SECONDS, HOLD_COUNT, HELD)


class CounterLines(LineFilter):
    """Takes a page in pieces and keeps the lines of these families."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_NAMES)


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading. None: this page does not tell. A counter without a series yet is 0.

    `releases` counts the ends of holds by outcome, `hold_seconds` adds up how long they took, `held` is how
    many there are now (engines refresh that gauge seldom). They exist from 0.5.22 on.
    """

    aborted: int | None = None
    failed_transfers: int | None = None
    failed_bootstraps: int | None = None
    generated: int | None = None
    releases: Mapping[str, int] | None = None
    hold_count: int | None = None
    hold_seconds: float | None = None
    held: int | None = None


def read_counters(page: LineFilter) -> Counters | None:
    """The counters of a whole page, None where it holds no series of SGLang."""
    if not page.sglang:
        return None
    families = parse_lines(page.lines, _NAMES)
    none = Family([], broken=False)

    def count(name: str, *, known: bool = True) -> float | None:
        family = families.get(name, none)
        if not family.samples:
            return 0.0 if known and not family.broken else None
        return counted(family.samples)

    ends = families.get(RELEASES, none)
    holds = HELD in families or bool(ends.samples)
    outcomes = sorted({labels.get("outcome", "") for labels, _ in ends.samples} - {""})
    releases = {
        outcome: int(counted(one for one in ends.samples if one[0].get("outcome") == outcome))
        for outcome in outcomes
    }
    return Counters(
        aborted=_whole(count(ABORTED)),
        failed_transfers=_whole(count(FAILED)),
        failed_bootstraps=_whole(count(FAILED_BOOTSTRAPS)),
        generated=_whole(count(GENERATED)),
        releases=releases if holds and (outcomes or not ends.broken) else None,
        hold_count=_whole(count(HOLD_COUNT, known=holds)),
        hold_seconds=count(HOLD_SECONDS, known=holds),
        held=_whole(count(HELD, known=False)),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
