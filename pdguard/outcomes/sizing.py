"""What holds may cost and how long they must be: capacity, the T_hold to set, the margin, what-ifs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdguard.facts.interface import Collected, Scalar, Subject
from pdguard.harden.settings.values import COMPUTED, Audience
from pdguard.outcomes.definitions import Limits
from pdguard.outcomes.histogram import Between, last_bound, longer_than, longest, mean
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Gap, HoldTimes, Outcomes
from pdguard.outcomes.margin import Margin, Verdict, in_force, margin_of
from pdguard.outcomes.terms import (
    NEEDS,
    Known,
    Term,
    configured,
    first_known,
    measured,
    product,
    unknown,
    weakest,
)

SHARE_LIMIT = Limits().held_share
"""Share of a decode pool that held pages may take before it is said to be too much."""


RATE_HOW = "name a --window, or say --aborts-per-second"


@dataclass(frozen=True, slots=True)
class Capacity:
    """KV that holds take at one time: rate × seconds × pages a request."""

    rate: Term
    seconds: Term
    request_pages: Term
    page_size: Term
    pool: Term
    pages: Term
    tokens: Term
    share: Term


@dataclass(frozen=True, slots=True)
class Advice:
    """The T_hold to set in seconds, or None. `most` is the longest that keeps holds within SHARE_LIMIT."""

    value: float | None
    good: bool | None
    """Whether the T_hold in force will do, by its margin and by policy; None where that is not known."""
    share: Term
    most: Term
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The same decode with another T_hold. `by_timeout` is the share of holds that the clock would end."""

    t_hold: float
    capacity: Capacity
    by_timeout: Between | Gap
    margin: Margin


@dataclass(frozen=True, slots=True)
class DecodeSizing:
    """One decode. `worst` counts T_hold for every hold, `usual` the mean that was measured."""

    name: str
    prefills: tuple[str, ...]
    worst: Capacity
    usual: Capacity
    margin: Margin
    advice: Advice
    what_ifs: tuple[WhatIf, ...]


def size(
    outcomes: Outcomes,
    collected: Collected | None,
    policy: Mapping[str, Scalar],
    what_ifs: Sequence[float] = (),
    prompt_tokens: float | None = None,
    aborts_per_second: float | None = None,
) -> tuple[DecodeSizing, ...]:
    """Every decode of `outcomes`. `collected` is None where the engines' settings could not be read.

    `what_ifs` are T_holds in seconds. `prompt_tokens` of an aborted request and `aborts_per_second` of one
    decode are the operator's own figures: assumed, and taken in place of what was measured.
    """
    given = Given(prompt_tokens, aborts_per_second)
    return tuple(_Decode(one, outcomes, collected, policy, given).sized(what_ifs) for one in outcomes.decodes)


@dataclass(frozen=True, slots=True)
class Given:
    """What the operator says in place of a measurement."""

    prompt_tokens: float | None
    aborts_per_second: float | None


class _Decode:
    """One decode with everything that its numbers come from."""

    def __init__(
        self,
        seen: EngineOutcomes,
        outcomes: Outcomes,
        collected: Collected | None,
        policy: Mapping[str, Scalar],
        given: Given,
    ) -> None:
        self._seen, self._given = seen, given
        subjects = {e.name: e for e in collected.engines} if collected is not None else {}
        self._subject = subjects.get(seen.name) or Subject("engine", seen.name)
        names = _prefills(seen.name, outcomes, collected)
        self._prefills = [subjects.get(n) or Subject("engine", n) for n in names]
        self._audience = Audience([self._subject, *self._prefills], policy)
        self._transfers = [e.transfer_seconds for e in outcomes.engines if e.name in names]

    def sized(self, what_ifs: Sequence[float]) -> DecodeSizing:
        t_hold = in_force(self._subject.facts, self._seen.t_hold)
        margin = self._margin(t_hold)
        return DecodeSizing(
            self._seen.name,
            tuple(p.name for p in self._prefills),
            self._capacity(self._worst_rate(), t_hold),
            self._capacity(self._said_rate() or self._hold_rate(), self._mean()),
            margin,
            self._advice(margin),
            tuple(self._what_if(seconds, t_hold) for seconds in what_ifs),
        )

    def _rate(self, name: str, count: float | Gap, ref: str) -> Term:
        if isinstance(count, Gap):
            return unknown(name, "/s", count.why, count.how)
        if self._seen.seconds <= 0:
            return unknown(name, "/s", "the window has no length", RATE_HOW)
        return Term(name, "/s", count / self._seen.seconds, Known.MEASURED, ref)

    def _said_rate(self) -> Term | None:
        """The operator's own rate, if there is one."""
        rate = self._given.aborts_per_second
        return None if rate is None else Term("aborts", "/s", rate, Known.ASSUMED, "--aborts-per-second")

    def _abort_rate(self) -> Term:
        read = self._seen.aborts
        count, ref = (read, "") if isinstance(read, Gap) else (read.value, read.ref)
        return self._rate("aborts", count, ref)

    def _hold_rate(self) -> Term:
        holds = [self._seen.holds.get(outcome, Gap("no holds were read")) for outcome in OUTCOMES]
        gap = next((h for h in holds if isinstance(h, Gap)), None)
        figures = [h for h in holds if isinstance(h, Figure)]
        total = gap if gap is not None else sum(f.value for f in figures)
        return self._rate("holds", total, figures[0].ref if figures else "")

    def _worst_rate(self) -> Term:
        """Aborts, unless more holds than aborts were seen: failures of other kinds hold too."""
        said = self._said_rate()
        if said is not None:
            return said
        aborts, holds = self._abort_rate(), self._hold_rate()
        if aborts.value is not None and (holds.value is None or holds.value <= aborts.value):
            return aborts
        return holds if holds.value is not None else aborts

    def _mean(self) -> Term:
        times = self._seen.hold_times
        if isinstance(times, Gap):
            return unknown("mean hold", "s", times.why, times.how)
        value = mean(times)
        if value is None:
            return unknown("mean hold", "s", "no hold ended within the window")
        return Term("mean hold", "s", value, Known.MEASURED, times.ref)

    def _page_size(self) -> Term:
        seen = measured("page size", "tokens", self._seen.page_size)
        return first_known(seen, configured("page size", "tokens", self._subject.facts, "page_size"))

    def _pool(self) -> Term:
        seen = measured("pool", "tokens", self._seen.pool)
        pools = self._subject.facts.items("pools")
        if seen.value is None and pools:
            total = sum(float(p) for p in pools if isinstance(p, int | float))
            return Term("pool", "tokens", total, Known.CONFIGURED, "max_total_num_tokens of every data rank")
        return first_known(seen, configured("pool", "tokens", self._subject.facts, "pool"))

    def _request_pages(self, page_size: Term) -> Term:
        name, unit = "pages a request", "pages"
        prompt = measured("prompt", "tokens", self._seen.prompt_tokens)
        if self._given.prompt_tokens is not None:
            said = self._given.prompt_tokens
            prompt = Term("prompt", "tokens", said, Known.ASSUMED, "--prompt-tokens")
        if prompt.value is None:
            how = prompt.how or "say it with --prompt-tokens"
            return unknown(name, unit, f"{NEEDS}prompt: {prompt.where}", how)
        if not page_size.value:
            return unknown(name, unit, f"{NEEDS}page size: {page_size.where}", page_size.how)
        pages = math.ceil(prompt.value / page_size.value)
        where = f"{prompt.value:,.0f} tokens ({prompt.where}) in pages of {page_size.value:,.0f}"
        return Term(name, unit, float(pages), weakest((prompt, page_size)), where)

    def _capacity(self, rate: Term, seconds: Term) -> Capacity:
        page_size, pool = self._page_size(), self._pool()
        request = self._request_pages(page_size)
        pages = product("held pages", "pages", (rate, seconds, request))
        tokens = product("held tokens", "tokens", (pages, page_size))
        return Capacity(rate, seconds, request, page_size, pool, pages, tokens, _share(tokens, pool))

    def _longest_transfer(self) -> tuple[Between | None, str]:
        """Over all prefills, and what to say of it."""
        known = [t for t in self._transfers if isinstance(t, HoldTimes)]
        found = [(longest(t), last_bound(t)) for t in known]
        seen = [(b, end) for b, end in found if b is not None]
        if not seen:
            gap = next((t for t in self._transfers if isinstance(t, Gap)), None)
            return None, f"longest transfer seen: unknown ({gap.why if gap else 'no transfer was timed'})"
        most, end = max(seen, key=lambda item: item[0].high)
        if math.isfinite(most.high):
            return most, f"the longest transfer seen took at most {most.high:g} s (buckets stop at {end:g} s)"
        return (
            most,
            f"the longest transfer seen took more than {end:g} s; buckets stop there, so how long is unknown",
        )

    def _margin(self, t_hold: Term) -> Margin:
        seen, _ = self._longest_transfer()
        return margin_of(self._subject, self._prefills, self._audience, seen, t_hold)

    def _advice(self, margin: Margin) -> Advice:
        computed = COMPUTED["hold-that-outlasts-a-call"](self._subject, self._audience)
        value = float(computed.value) if computed.value else None
        good = _will_do(margin.verdict, computed.good)
        rate = self._worst_rate()
        most = self._most(rate)
        if value is None:
            nothing = unknown("share of the pool", "share", "there is no T_hold to set")
            return Advice(None, good, nothing, most, (computed.why,))
        reasons = [computed.why, *self._calls_unknown(), self._longest_transfer()[1]]
        t_hold = Term("T_hold", "s", value, Known.ASSUMED, "the T_hold to set")
        share = self._capacity(rate, t_hold).share
        reasons.append(_fits(value, rate, share, most))
        return Advice(value, good, share, most, tuple(reasons))

    def _calls_unknown(self) -> Sequence[str]:
        if self._audience.slowest_call[0]:
            return ()
        return ("no bound of one transfer call is known, so only the policy speaks",)

    def _most(self, rate: Term) -> Term:
        """Seconds of T_hold at which holds take SHARE_LIMIT of the pool."""
        name = "longest T_hold that fits the pool"
        second = self._capacity(rate, Term("one second", "s", 1.0, Known.ASSUMED, "")).share
        if second.value is None:
            return unknown(name, "s", second.where, second.how)
        value = SHARE_LIMIT / second.value if second.value > 0 else math.inf
        return Term(name, "s", value, second.known, f"{SHARE_LIMIT:.0%} of the pool at this rate")

    def _what_if(self, seconds: float, before: Term) -> WhatIf:
        t_hold = Term("T_hold", "s", seconds, Known.CONFIGURED, "--what-if")
        capacity = self._capacity(self._worst_rate(), t_hold)
        return WhatIf(seconds, capacity, self._by_timeout(seconds, before), self._margin(t_hold))

    def _by_timeout(self, seconds: float, before: Term) -> Between | Gap:
        times = self._seen.hold_times
        if isinstance(times, Gap):
            return times
        longer = longer_than(times, seconds)
        if longer is None:
            return Gap("no hold ended within the window")
        ended = self._seen.holds.get("timeout")
        known = before.value is not None and before.known is not Known.ASSUMED
        if not known or not isinstance(ended, Figure) or seconds < (before.value or 0.0):
            return longer
        # Holds that the clock ended were not watched any longer; all or none of them may have drained later.
        share = min(1.0, ended.value / times.count) if times.count > 0 else 0.0
        return Between(share if seconds == before.value else 0.0, share)


def _will_do(verdict: Verdict, by_policy: bool | None) -> bool | None:
    """The margin decides; what it finds long enough may still be outside of policy."""
    if verdict in (Verdict.UNKNOWN, Verdict.SHORT):
        return None
    return verdict is Verdict.HOLDS and by_policy is not False


def _prefills(decode: str, outcomes: Outcomes, collected: Collected | None) -> list[str]:
    """The prefills that may serve `decode`: those of its pairs, or all where no pair is known."""
    pairs = collected.pairs if collected is not None else []
    paired = {name for pair in pairs if decode in pair.members[1] for name in pair.members[0]}
    every = [e.name for e in outcomes.engines if e.role == "prefill"]
    return [name for name in every if name in paired] or every


def _share(tokens: Term, pool: Term) -> Term:
    name, unit = "share of the pool", "share"
    for term in (tokens, pool):
        if term.value is None:
            return unknown(name, unit, term.where, term.how)
    if not pool.value:
        return unknown(name, unit, "the pool is empty")
    return Term(name, unit, (tokens.value or 0.0) / pool.value, weakest((tokens, pool)), "held tokens ÷ pool")


def _fits(value: float, rate: Term, share: Term, most: Term) -> str:
    if share.value is None:
        return f"whether the pool can bear it is unknown: {share.where}"
    text = (
        f"holds then take at most {share.value:.1%} of the pool, at {rate.value:.3g} {rate.name} per second"
    )
    if share.value <= SHARE_LIMIT:
        return text
    return (
        f"{text}, which is much: {most.value:.3g} s would keep them within {SHARE_LIMIT:.0%}, but do not set"
        " less than a call may take; find out why requests are aborted, or give decode a larger pool"
    )
