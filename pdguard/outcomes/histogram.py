"""What a histogram of cumulative buckets tells: quantiles, and how many lasted longer than a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdguard.outcomes.interface import HoldTimes


@dataclass(frozen=True, slots=True)
class Between:
    """A number that lies between two others, both included."""

    low: float
    high: float


def last_bound(times: HoldTimes) -> float:
    """The largest finite bucket bound in seconds; 0 where there is none."""
    return max((bound for bound, _ in times.buckets if math.isfinite(bound)), default=0.0)


def quantile(times: HoldTimes, share: float) -> float | None:
    """The time within which `share` of them ended, linear inside a bucket.

    None without any observation, infinite where it lies beyond the last finite bound.
    """
    total = _total(times)
    if total <= 0:
        return None
    wanted, below, floor = share * total, 0.0, 0.0
    for bound, count in times.buckets:
        if count >= wanted and count > below:
            if not math.isfinite(bound):
                return math.inf
            return floor + (bound - floor) * (wanted - below) / (count - below)
        below, floor = count, bound
    return math.inf


def longest(times: HoldTimes) -> Between | None:
    """The bucket that holds the longest one; None without any, `high` infinite beyond the last bound."""
    total = _total(times)
    if total <= 0:
        return None
    floor = 0.0
    for bound, count in times.buckets:
        if count >= total:
            return Between(floor, bound)
        floor = bound
    return Between(floor, math.inf)


def longer_than(times: HoldTimes, seconds: float) -> Between | None:
    """The share of them that lasted longer than `seconds`: between which two, for want of finer buckets."""
    total = _total(times)
    if total <= 0:
        return None
    under, over = 0.0, total
    for bound, count in times.buckets:
        if bound <= seconds:
            under = count
        if bound >= seconds:
            over = count
            break
    return Between(max(0.0, 1 - over / total), max(0.0, 1 - under / total))


def mean(times: HoldTimes) -> float | None:
    """Mean seconds; None without any observation."""
    return times.total_seconds / times.count if times.count > 0 else None


def contradicts(times: HoldTimes) -> bool:
    """Whether no set of times gives both these buckets and this sum."""
    least = most = below = floor = 0.0
    for bound, count in times.buckets:
        least += (count - below) * floor
        most += (count - below) * bound if count > below else 0.0
        below, floor = count, bound if math.isfinite(bound) else floor
    if times.count > below:
        least, most = least + (times.count - below) * floor, math.inf
    allowed = 1e-6 * (1 + abs(times.total_seconds))
    return not least - allowed <= times.total_seconds <= most + allowed


def _total(times: HoldTimes) -> float:
    return max(times.count, max((count for _, count in times.buckets), default=0.0))
