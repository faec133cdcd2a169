"""What the engines of one role showed since a client left. Pure: fed with readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdguard.probe.counters import Counters
from pdguard.probe.interface import HalfResult, Release, Role, Verdict
from pdguard.probe.state import Load, at_rest

GONE, FAILED, NEVER = "client gone", "failed transfer", "never"

Loads = Mapping[str, Load]


def counters_of(load: Load | None) -> Counters:
    """The counters, all of them unknown where the page was not read."""
    return (load.counters if load is not None else None) or Counters()


def stirred(earlier: Loads, now: Loads) -> bool:
    """Whether aborted requests or failed transfers moved, or their engine began counting anew."""
    return any(
        None not in pair and pair[0] != pair[1]
        for name, load in now.items()
        for before, after in ((counters_of(earlier.get(name)), counters_of(load)),)
        for pair in (
            (before.aborted, after.aborted),
            (before.failed_transfers, after.failed_transfers),
        )
    )


@dataclass(slots=True)
class Half:
    """The engines of one role since the client left."""

    role: Role
    names: tuple[str, ...]
    before: Loads
    latest: dict[str, Load] = field(default_factory=dict)
    aborted_after: float | None = None
    failed_after: float | None = None
    let_go_after: float | None = None
    who: str = ""
    others: bool = False
    restarted: bool = False

    def take(self, after: float, loads: Loads) -> bool:
        """Take a reading; True if it told something new."""
        for name in self.names:
            load, last = loads.get(name), self.latest.get(name)
            # A page that fails once does not undo what was read before it.
            if load is not None and (load.counters is not None or last is None or last.counters is None):
                self.latest[name] = load
        old = (self.aborted_after, self.failed_after, self.let_go_after)
        aborted, failed = self.grown("aborted"), self.grown("failed_transfers")
        if aborted and self.aborted_after is None:
            self.aborted_after = after
        if failed and self.failed_after is None:
            self.failed_after = after
        self.others = self.others or aborted > 1 or failed > 1
        rest = [at_rest(self.before.get(name), loads.get(name, Load(0.0)), self.role) for name in self.names]
        if all(rest):
            self.let_go_after = after if self.let_go_after is None else self.let_go_after
        elif False in rest:
            self.let_go_after = None
        return old != (self.aborted_after, self.failed_after, self.let_go_after)

    def grown(self, counter: str) -> int:
        """By how much a counter has risen, over all engines of the role."""
        total = 0
        for name in self.names:
            before, now = counters_of(self.before.get(name)), counters_of(self.latest.get(name))
            was, is_ = getattr(before, counter), getattr(now, counter)
            if was is None or is_ is None:
                continue
            if is_ < was:
                self.restarted = True
            elif is_ > was:
                self.who = name
                total += is_ - was
        return total

    @property
    def counted(self) -> bool:
        """Whether every engine's counters could be read, before and after."""
        return all(
            getattr(counters_of(loads.get(name)), counter) is not None
            for name in self.names
            for loads in (self.before, self.latest)
            for counter in ("aborted", "failed_transfers")
        )

    @property
    def told_after(self) -> float | None:
        """When it first showed that it knew.

        Decode knows by its client alone: a transfer of its own that fails has met a timeout or an error.
        """
        if self.role is Role.DECODE:
            return self.aborted_after
        return min((t for t in (self.aborted_after, self.failed_after) if t is not None), default=None)

    @property
    def learned_by(self) -> str:
        """How it learned. Its own client's leaving counts first."""
        if self.aborted_after is not None:
            return GONE
        return FAILED if self.failed_after is not None else NEVER

    @property
    def label(self) -> str:
        """The engine that told something, or all of the role."""
        return self.who or ", ".join(self.names)

    @property
    def trouble(self) -> str:
        """Why something could not be read."""
        return next((load.trouble for load in self.latest.values() if load.trouble), "")

    def result(self, verdict: Verdict, reason: str) -> HalfResult:
        """This half of the step."""
        how = "/v1/loads queues"
        release = (
            Release(True, self.let_go_after, how)
            if self.let_go_after is not None
            else Release(
                None if not self.latest or self._queues_unknown() else False, None, self.trouble or how
            )
        )
        return HalfResult(self.label, self.role, verdict, reason, release=release)

    def _queues_unknown(self) -> bool:
        return any(load.queued(self.role) is None for load in self.latest.values())
