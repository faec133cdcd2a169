"""Facts that another run of pdguard observed (a probe, a window of metrics), merged into an audit.

An observation is evidence only of what runs now. Where an engine that it concerns was started since, or has
another version, limit or pool than it had then, it is left out, with a note; where its start is not known,
what went well is believed for a day only. A pair that stands for many takes what was seen to fail on one of
them, since they are alike; what was seen to go well on one is no proof for the others.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdguard.facts.history import RETIRED_AT_DOOR, RETIRED_LATE, WALKS_ON
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade, Missing, PairSubject, Subject, Value

DAY = 86_400.0
MAX_NAMES = 6
ARROW = "→"

PROBE, METRICS = "probe", "metrics"
KINDS = ("over-pool", "abort", "pairing", "canary", "staging")
OVER_POOL = (
    *("exposed", "walked on", "waited for the timeout", "still held", "inconclusive", "rejected late"),
    *("truncated by configuration", "rejected at the door", "refused by the tokenizer"),
)
"""What the answers to prompts over a limit came to, worst first."""

Words = tuple[str, ...] | None

OBSERVABLE: Mapping[str, Mapping[tuple[str, str], Words]] = {
    PROBE: {
        ("pair", "probes"): KINDS,
        ("pair", "probe_over_pool"): OVER_POOL,
        ("pair", "probe_exposed"): None,
        ("pair", "probe_depends"): None,
        ("pair", "probe_held"): ("none", "prefill", "decode", "both"),
        ("pair", "abort_told"): ("both", "decode only", "prefill only", "neither"),
        ("pair", "abort_outcome"): ("drained", "timeout", "error", "no hold"),
        ("pair", "canary_drift"): None,
        ("router", "probes"): KINDS,
        ("router", "probe_over_pool"): OVER_POOL,
        ("router", "probe_exposed"): None,
        ("router", "probe_depends"): None,
        ("router", "canary_drift"): None,
        ("router", "pairs_refusals"): ("yes", "no"),
        ("router", "pairs_disconnects"): ("yes", "no", "not streamed", "not always"),
        ("engine", "reject_fate"): (WALKS_ON, RETIRED_LATE, RETIRED_AT_DOOR),
    },
    METRICS: {
        ("engine", "hold_window_seconds"): None,
        ("engine", "window_holds_drained"): None,
        ("engine", "window_holds_timeout"): None,
        ("engine", "window_holds_error"): None,
        ("engine", "held_share"): None,
        ("engine", "outcomes"): ("counted",),
    },
}
"""What each kind of document may say, with the words of those facts that have a closed list of them."""

WINDOW_FACTS = tuple(name for _, name in OBSERVABLE[METRICS] if name != "outcomes")
WINDOW_COUNTS = ("window_holds_drained", "window_holds_timeout", "window_holds_error")

_STICKY: Mapping[str, frozenset[Value]] = {
    "probe_exposed": frozenset({True}),
    "probe_depends": frozenset({True}),
    "canary_drift": frozenset({True}),
    "probe_held": frozenset({"prefill", "decode", "both"}),
    "probe_over_pool": frozenset(OVER_POOL[:4]),
    "abort_told": frozenset({"decode only", "prefill only", "neither"}),
    "abort_outcome": frozenset({"timeout", "error", "no hold"}),
    "reject_fate": frozenset({WALKS_ON, RETIRED_LATE}),
}
"""Failing values: a later run that did not see it does not undo them while the same processes run."""

_FAILING: Mapping[str, frozenset[Value]] = {
    **_STICKY,
    "pairs_refusals": frozenset({"no"}),
    "pairs_disconnects": frozenset({"no", "not streamed", "not always"}),
}
"""All failing values. Whether a router is still the same is never known, so of it the newest counts."""


@dataclass(frozen=True, slots=True)
class EngineMark:
    """What an engine was when it was observed; None where that was not known. Limits and pools in tokens."""

    name: str
    version: str | None = None
    context_length: int | None = None
    admission_limit: int | None = None
    pool: int | None = None

    def changed(self, facts: FactSet) -> str:
        """What is not as it was, in words, or empty. What is known on one side only has not changed."""
        for fact in MARKED:
            then, now = getattr(self, fact), facts.value(fact)
            if then is not None and now is not None and then != now:
                return f"{fact.replace('_', ' ')} {then} then, {now} now"
        return ""


MARKED = ("version", "context_length", "admission_limit", "pool")


def mark_of(engine: Subject) -> EngineMark:
    """The mark of an engine by its facts."""
    f = engine.facts
    limits = (f.integer(name) for name in MARKED[1:])
    return EngineMark(engine.name, f.text("version"), *limits)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed fact, by its catalogue name, about the engine, pair, router or cluster `name`.

    `source` is `probe` or `metrics`, `ref` the place within it, `at` the UTC time, ISO 8601 with Z, at which
    the observation began, `engines` what the engines of the run were then: what an engine did before it was
    last started, or was another, says nothing of what runs now.
    """

    subject: str
    name: str
    fact: str
    value: Value
    source: str
    ref: str
    at: str
    engines: tuple[EngineMark, ...] = field(default=(), compare=False, repr=False)

    @property
    def seconds(self) -> float:
        """`at` in seconds since 1970."""
        return datetime.datetime.fromisoformat(self.at.replace("Z", "+00:00")).timestamp()

    @property
    def fails(self) -> bool:
        """Whether it is a failure that others who are alike share."""
        return self.value in _FAILING.get(self.fact, frozenset())

    @property
    def stays(self) -> bool:
        """Whether it is a failure that a later success does not undo."""
        return self.value in _STICKY.get(self.fact, frozenset())


def as_mark(mark: EngineMark) -> dict[str, Any]:
    """A mark as documents write it."""
    return {"name": mark.name, **{fact: getattr(mark, fact) for fact in MARKED}}


def as_entry(one: Observation) -> dict[str, Any]:
    """An observation as documents write it, and as `observed_files` reads it back."""
    value = list(one.value) if isinstance(one.value, tuple) else one.value
    return {
        **{"subject": one.subject, "name": one.name, "fact": one.fact, "value": value},
        **{"source": one.source, "ref": one.ref, "at": one.at},
    }


@dataclass(slots=True)
class Observed:
    """The observations given to one audit. `now` is seconds since 1970; `notes` gathers what is left out."""

    observations: Sequence[Observation] = ()
    now: float = 0.0
    _stale: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict, init=False)
    _other: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict, init=False)
    _past: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict, init=False)
    _aged: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict, init=False)
    _index: dict[tuple[str, str], list[Observation]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for one in self.observations:
            self._index.setdefault((one.subject, one.name), []).append(one)

    @property
    def watched(self) -> bool:
        """Whether a document of metrics is among them."""
        return any(o.source == METRICS for o in self.observations)

    def engine(self, subject: Subject) -> None:
        """Add what concerns one engine, before other facts are derived from its own."""
        mine = self._fresh(self._index.get(("engine", subject.name), ()), {subject.name: subject.facts})
        _put_all(subject.facts, mine)
        if self.watched:
            known = [subject.facts.get(n) for n in WINDOW_COUNTS]
            ref = "how its holds ended within the window"
            subject.facts.add("watched", all(f is not None for f in known), Grade.OBSERVED, METRICS, ref)

    def router(self, subject: Subject, behind: Iterable[Subject]) -> None:
        """Add what was seen through one router, in front of the engines `behind` it."""
        engines = {e.name: e.facts for e in behind}
        mine = self._fresh(self._index.get(("router", subject.name), ()), engines)
        subject.facts.entries["probes"] = _probes(mine)
        _put_all(subject.facts, [o for o in mine if o.fact != "probes"])

    def pairs(self, pairs: Sequence[PairSubject], engines: Iterable[Subject]) -> None:
        """Add what was seen on pairs, to each pair or to the one that stands for it."""
        facts = {e.name: e.facts for e in engines}
        found = self._by_pair(pairs)
        for number, pair in enumerate(pairs):
            mine: list[Observation] = []
            for one in found.get(number, ()):
                mine += self._fresh([one], {n: facts[n] for n in one.name.split(ARROW) if n in facts})
            pair.facts.entries["probes"] = _probes(mine)
            _put_all(pair.facts, [o for o in mine if o.fact != "probes"], pair.alike)

    def cluster(self, subject: Subject) -> None:
        """Add whether outcomes were watched at all. That they were not is no evidence, and shows none."""
        evidence = (Evidence(METRICS, "a document of metrics was given", True),) if self.watched else ()
        subject.facts.put("watched", Fact(self.watched, Grade.OBSERVED, evidence))

    def notes(self) -> tuple[str, ...]:
        """What was merged, what was left out, and what is old."""
        merged: dict[tuple[str, str], int] = {}
        for one in self.observations:
            merged[one.source, one.at] = merged.get((one.source, one.at), 0) + 1
        told = []
        for (source, at), count in merged.items():
            left = (self._stale, self._other, self._past)
            kept = count - sum(sum(one.get((source, at), {}).values()) for one in left)
            if kept > 0:
                told.append(f"{source} of {at}: {kept:,} observation{'s' if kept > 1 else ''} merged")
        for (source, at), engines in self._stale.items():
            count = sum(engines.values())
            what = "1 observation is" if count == 1 else f"{count:,} observations are"
            told.append(f"{source} of {at}: {what} left out, for {_names(engines)} started later")
        for (source, at), engines in self._other.items():
            count = sum(engines.values())
            what = "1 observation is" if count == 1 else f"{count:,} observations are"
            told.append(
                f"{source} of {at}: {what} left out, for what was observed runs no more: {_names(engines)}"
            )
        for (source, at), engines in self._past.items():
            count = sum(engines.values())
            what = "1 that went well is" if count == 1 else f"{count:,} that went well are"
            told.append(
                f"{source} of {at}: {what} left out as older than a day, for the start of {_names(engines)} "
                "is not known"
            )
        for (source, at), engines in self._aged.items():
            age = _age(self.now - _when(at))
            told.append(
                f"{source} of {at} is {age} old; whether {_names(engines)} started later is not known"
            )
        return tuple(told)

    def _by_pair(self, pairs: Sequence[PairSubject]) -> dict[int, list[Observation]]:
        sides: tuple[dict[str, set[int]], ...] = (defaultdict(set), defaultdict(set))
        for number, pair in enumerate(pairs):
            members = pair.members if any(pair.members) else ((pair.prefill.name,), (pair.decode.name,))
            for side, names in zip(sides, members, strict=True):
                for name in names:
                    side[name].add(number)
        found: dict[int, list[Observation]] = defaultdict(list)
        for one in self.observations:
            if one.subject == "pair":
                prefill, _, decode = one.name.partition(ARROW)
                for number in sides[0].get(prefill, set()) & sides[1].get(decode, set()):
                    found[number].append(one)
        return found

    def _fresh(self, found: Sequence[Observation], engines: Mapping[str, FactSet]) -> list[Observation]:
        """Those that began after every engine they concern; the rest is noted."""
        kept = []
        for one in found:
            began = one.seconds
            starts = {name: facts.integer("started") for name, facts in engines.items()}
            later = [n for n, s in starts.items() if s is not None and s > began]
            if later:
                _count(self._stale, one, later)
                continue
            marks = {m.name: m for m in one.engines}
            other = {n: marks[n].changed(facts) for n, facts in engines.items() if n in marks}
            if any(other.values()):
                _count(self._other, one, [f"{n} ({how})" for n, how in other.items() if how])
                continue
            unknown = [n for n, s in starts.items() if s is None]
            if unknown and self.now - began > DAY and not one.fails and one.fact != "probes":
                _count(self._past, one, unknown)
                continue
            if unknown:
                _count(self._aged, one, unknown)
            kept.append(one)
        return kept


def _count(into: dict[tuple[str, str], dict[str, int]], one: Observation, names: Sequence[str]) -> None:
    counts = into.setdefault((one.source, one.at), {})
    for place, name in enumerate(names):
        counts[name] = counts.get(name, 0) + (place == 0)  # an observation counts once, whoever made it old


def _probes(found: Sequence[Observation]) -> Fact:
    """Which kinds of probe saw the subject; none where no probe was given, which needs no evidence."""
    ran = {k for o in found if o.fact == "probes" and isinstance(o.value, tuple) for k in o.value}
    evidence = dict.fromkeys(_evidence(o) for o in found if o.fact == "probes")
    value = tuple(k for k in KINDS if k in ran)
    return Fact(value, Grade.OBSERVED, tuple(evidence) or (Evidence(PROBE, "none was given", ()),))


def _put_all(facts: FactSet, found: Sequence[Observation], alike: int = 1) -> None:
    by_fact: dict[str, list[Observation]] = defaultdict(list)
    for one in found:
        by_fact[one.fact].append(one)
    for name, some in by_fact.items():
        best = max(some, key=lambda o: (o.stays, o.seconds))
        seen = sorted({o.name for o in some})
        if len(seen) < alike and not best.fails:
            told = ", ".join(seen[:MAX_NAMES])
            why = f"seen on {told} only, one of {alike:,} pairs that are alike" if len(seen) == 1 else ""
            why = why or f"seen on {told} only, {len(seen):,} of {alike:,} pairs that are alike"
            facts.entries[name] = Missing(why, "probe the others as well")
            continue
        same = sorted((o for o in some if o.value == best.value), key=lambda o: -o.seconds)[:MAX_NAMES]
        evidence = dict.fromkeys(_evidence(o, alike > 1) for o in (best, *same))
        facts.put(name, Fact(best.value, Grade.OBSERVED, tuple(evidence)))


def _evidence(one: Observation, named: bool = False) -> Evidence:
    where = f"{one.name}: {one.ref}" if named else one.ref
    return Evidence(one.source, f"{where}, {one.at}", one.value)


def _when(at: str) -> float:
    return datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


def _names(engines: Iterable[str]) -> str:
    names = sorted(engines)
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _age(seconds: float) -> str:
    days = seconds / DAY
    if days < 1:
        return f"{max(0.0, seconds) / 3600:.1f} hours"
    return f"{days:.1f} days" if days < 10 else f"{days:,.0f} days"
