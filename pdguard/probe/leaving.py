"""What two halves showed after a client left in mid-transfer. Pure: fed with readings, gives a verdict.

A half learns of it in one of two ways: its own client went (its counter of aborted requests rises), or decode
told prefill (whose counter of failed transfers rises). Where a transfer left the queues and neither half
counted it as failed, it ran to its end: whoever was told then was told too late.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdguard.probe.half import FAILED, Half, Loads, counters_of
from pdguard.probe.interface import HalfResult, Measure, Verdict

SETTLE = 1.0
"""Seconds without news after which the counters are taken as final."""
NOTICE = {False: 5.0, True: 1.0}
"""By `stream`: seconds within which an engine notices that its client left. Where nothing is streamed it
looks only every 4 s or so; a transfer that ends within that time tells nothing."""


@dataclass(slots=True)
class Leaving:
    """Everything since the client left. `noisy`: counters moved before it, by other requests."""

    prefill: Half
    decode: Half
    stream: bool
    noisy: bool = False
    at_leaving: Loads = field(default_factory=dict)
    seconds: float = 0.0
    news_at: float = 0.0
    hold_outcome: str = ""
    hold_seconds: float | None = None

    def take(self, after: float, loads: Loads) -> None:
        """Take a reading of all engines, `after` seconds after the client left."""
        self.seconds = after
        news = [half.take(after, loads) for half in (self.prefill, self.decode)]
        if not self.hold_outcome and self._read_hold():
            news.append(True)
        if any(news):
            self.news_at = after

    @property
    def let_go(self) -> bool:
        """Whether both halves' queues are back to what they were."""
        return self.prefill.let_go_after is not None and self.decode.let_go_after is not None

    @property
    def ended_after(self) -> float | None:
        """When the last half let go."""
        ends = [h.let_go_after for h in (self.prefill, self.decode) if h.let_go_after is not None]
        return max(ends) if len(ends) == 2 else None

    @property
    def failed(self) -> bool:
        """Whether either half counted the transfer as failed."""
        return self.prefill.failed_after is not None or self.decode.failed_after is not None

    @property
    def completed(self) -> bool:
        """Whether the transfer left both queues and nobody counted it as failed."""
        return self.let_go and not self.failed and self.prefill.counted and self.decode.counted

    @property
    def too_short(self) -> bool:
        """Whether the transfer ended by itself before an engine could have noticed."""
        return self.completed and (self.ended_after or 0.0) <= NOTICE[self.stream]

    @property
    def clear(self) -> bool:
        """Whether the counters can be told apart from other requests'."""
        halves = (self.prefill, self.decode)
        return not self.noisy and not any(half.others or half.restarted for half in halves)

    @property
    def finished(self) -> bool:
        """Whether waiting longer cannot tell more."""
        quiet = self.seconds - self.news_at >= SETTLE
        if not quiet or not self.let_go:
            return False
        if not (self.prefill.counted and self.decode.counted):
            return True
        if self.completed:
            # A router that missed it may close when the first tokens come, and decode looks every 4 s.
            return self.decode.aborted_after is not None or (
                not self._generating() and self.seconds - self.news_at >= NOTICE[self.stream]
            )
        told = self.decode.told_after is not None and self.prefill.told_after is not None
        return told and (bool(self.hold_outcome) or not self._holds_counted())

    def _generating(self) -> bool:
        return any(
            (load.busy or 0) > ((self.decode.before[name].busy if name in self.decode.before else 0) or 0)
            for name, load in self.decode.latest.items()
        )

    def _holds_counted(self) -> bool:
        return any(counters_of(load).releases is not None for load in self.decode.latest.values())

    def _read_hold(self) -> bool:
        for name, load in self.decode.latest.items():
            before, now = counters_of(self.decode.before.get(name)), counters_of(load)
            earlier = before.releases or {}
            for outcome, count in (now.releases or {}).items():
                if count > earlier.get(outcome, 0):
                    self.hold_outcome = outcome
                    ended = (now.hold_count or 0) - (before.hold_count or 0)
                    if ended >= 1 and now.hold_seconds is not None:
                        self.hold_seconds = (now.hold_seconds - (before.hold_seconds or 0.0)) / ended
                    return True
        return False

    def tokens(self) -> int | None:
        """Tokens that decode generated after the client left, None where not counted."""
        grown = [
            now - was
            for name, load in self.decode.latest.items()
            if (now := counters_of(load).generated) is not None
            and (was := counters_of(self.at_leaving.get(name)).generated) is not None
        ]
        return sum(grown) if grown and min(grown) >= 0 else None

    def measures(self) -> tuple[Measure, ...]:
        """The figures, those of counters only where they can be told apart."""
        found = [
            ("decode_let_go_after", self.decode.let_go_after, "s"),
            ("prefill_let_go_after", self.prefill.let_go_after, "s"),
            ("transfer_ended_after", self.ended_after, "s"),
        ]
        if self.clear and self.decode.counted:
            found.append(("decode_told_after", self.decode.told_after, "s"))
        if self.clear and self.prefill.counted:
            found.append(("prefill_told_after", self.prefill.told_after, "s"))
        made = [Measure(name, round(value, 2), unit) for name, value, unit in found if value is not None]
        if self.clear:
            made += [
                Measure(f"{half.role.value}_learned_by", half.learned_by)
                for half in (self.decode, self.prefill)
                if half.counted
            ]
            made.append(Measure("hold_outcome", self.hold_words))
            if self.hold_seconds is not None:
                made.append(Measure("hold_seconds", round(self.hold_seconds, 2), "s"))
            if (tokens := self.tokens()) is not None:
                made.append(Measure("tokens_after_leaving", tokens))
        return tuple(made)

    @property
    def hold_words(self) -> str:
        """How the hold ended, or why that is not told."""
        if self.hold_outcome:
            return self.hold_outcome
        if not self._holds_counted():
            return "not counted (before 0.5.22, or no metrics)"
        held = sum(counters_of(load).held or 0 for load in self.decode.latest.values())
        earlier = sum(counters_of(load).held or 0 for load in self.decode.before.values())
        # No hold at all looks the same as one that lasts longer than this: the gauge of holds lags behind.
        return "still held" if held > earlier else f"none ended within {self.seconds:.0f} s"

    def verdict(self) -> tuple[Verdict, str]:
        """Were both halves told while the transfer was running?"""
        for half in (self.decode, self.prefill):
            if half.restarted:
                return Verdict.INCONCLUSIVE, f"{half.label} was started anew meanwhile"
        if not self.clear:
            return (
                Verdict.INCONCLUSIVE,
                "other requests are being aborted here; their counts cannot be told apart",
            )
        unread = [half for half in (self.decode, self.prefill) if not half.counted]
        if unread:
            return Verdict.INCONCLUSIVE, (
                f"whether {unread[0].label} was told cannot be read"
                + (f": {unread[0].trouble}" if unread[0].trouble else "")
            )
        if self.too_short:
            return Verdict.INCONCLUSIVE, (
                f"the transfer ended {self.ended_after:.1f} s after the client left, sooner than an engine "
                "looks for that"
            )
        if self.completed:
            told = ", ".join(self._words(half) for half in (self.decode, self.prefill))
            return Verdict.NOT_TOLD, (
                f"not before the transfer ended, {self.ended_after:.1f} s after the client left: {told}"
            )
        # A transfer that fails where decode knows nothing was not ended by the client that left.
        both = all(half.told_after is not None for half in (self.decode, self.prefill))
        text = ", ".join(self._words(half) for half in (self.decode, self.prefill))
        return (Verdict.TOLD if both else Verdict.NOT_TOLD), text

    def _words(self, half: Half) -> str:
        name = half.role.value
        if half.told_after is None:
            never = f"{name} never" + ("" if self.completed else f" within {self.seconds:.0f} s")
            failed = half.failed_after
            return never + (
                "" if failed is None else f" (its transfer failed by itself after {failed:.1f} s)"
            )
        how = " by the failed transfer" if half.learned_by == FAILED else ""
        return f"{name} was told after {half.told_after:.1f} s{how}"

    def halves(self) -> tuple[HalfResult, ...]:
        """Both halves with their own verdicts."""
        made = []
        whole, reason = self.verdict()
        for half in (self.prefill, self.decode):
            if whole is Verdict.INCONCLUSIVE:
                made.append(half.result(whole, reason))
                continue
            told = half.told_after is not None and not self.completed
            verdict = Verdict.TOLD if told else Verdict.NOT_TOLD
            made.append(half.result(verdict, self._words(half)))
        return tuple(made)
