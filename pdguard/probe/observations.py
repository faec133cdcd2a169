"""From the results of a probe to facts of grade observed, for `pdguard audit --with`.

Only what a result settles becomes a fact. Direct steps speak of the pair and its engines, steps through a
router of the router: which pair served those, it does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pdguard.facts.history import RETIRED_AT_DOOR, RETIRED_LATE, WALKS_ON
from pdguard.facts.interface import Value
from pdguard.facts.observed import KINDS, OVER_POOL, PROBE, Observation
from pdguard.probe.interface import (
    ErrorClass,
    HalfResult,
    Kind,
    ProbeResult,
    Role,
    Side,
    Step,
    StepResult,
    Verdict,
)

_REFUSING = (Side.BOTH, Side.DECODE, Side.PREFILL)
_WAITED = (Verdict.WAITED, Verdict.HELD)
_REFUSED = (Verdict.DOOR, Verdict.LATE)
_OPEN = (Verdict.INCONCLUSIVE, Verdict.TRUNCATED, Verdict.WALKED_ON)
"""Verdicts that leave it open whether an answer could have been drawn from others' pages."""

_FATES = (WALKS_ON, RETIRED_LATE, RETIRED_AT_DOOR)
_OUTCOMES = ("drained", "timeout", "error")
_WORST_OUTCOMES = ("no hold", "timeout", "error", "drained")
_NONE_ENDED = "none ended"
_NO_LIMITS = tuple(kind.value for kind in (Kind.PAIRING, Kind.ABORT, Kind.CANARY))
"""Beginnings of what is left out and has nothing to do with prompts at the limits."""

_HASHES = ("answer 1: hash", "answer 2: hash")

Found = tuple[str, Value, Sequence[StepResult]]
"""A fact, its value, and the results that it rests on."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """Everything that was done about one pair or router. `unfinished` are kinds whose plan was cut short."""

    kind: str
    name: str
    results: tuple[StepResult, ...]
    unfinished: frozenset[Kind]
    cut: bool = False
    """Prompts at some limits were left out of the plan, though such lengths may exist."""

    def of(self, kind: Kind) -> tuple[StepResult, ...]:
        return tuple(r for r in self.results if r.step.kind is kind)

    def settled(self, kind: Kind) -> bool:
        """Whether the kind was done as planned and every result says something."""
        ran = self.of(kind)
        return bool(ran) and kind not in self.unfinished and all(r.verdict not in _OPEN for r in ran)


def observations(result: ProbeResult) -> tuple[Observation, ...]:
    """Every fact that `result` settles, dated by the run's beginning."""
    found: list[Observation] = []
    for subject in _subjects(result):
        facts = _facts(subject)
        found += [_observation(subject.kind, subject.name, f, result.started_at) for f in facts]
    found += [_observation("engine", name, fact, result.started_at) for name, fact in _fates(result.results)]
    return tuple(found)


def _subjects(result: ProbeResult) -> list[_Subject]:
    names = dict.fromkeys(r.step.route.subject for r in result.results)
    done = {r.step.number for r in result.results}
    left = [s for s in result.plan.steps if s.number not in done]
    cut = any(one.lost and not one.what.startswith(_NO_LIMITS) for one in result.plan.left_out)
    return [
        _Subject(
            kind,
            name,
            tuple(r for r in result.results if r.step.route.subject == (kind, name)),
            frozenset(s.kind for s in left if s.route.subject == (kind, name)),
            cut,
        )
        for kind, name in names
    ]


def _observation(kind: str, name: str, found: Found, at: str) -> Observation:
    fact, value, results = found
    return Observation(kind, name, fact, value, PROBE, _ref(results), at)


def _ref(results: Sequence[StepResult]) -> str:
    steps = [_step(r.step) for r in results]
    return "; ".join(steps[:3]) + (f"; {len(steps) - 3} more" if len(steps) > 3 else "")


def _step(step: Step) -> str:
    length = f", {step.length.tokens:,} tokens" if step.length is not None else ""
    stream = ", streamed" if step.stream else ""
    return f"step {step.number} {step.kind.value}{length}{stream}"


def _facts(subject: _Subject) -> Iterator[Found]:
    ran = {r.step.kind.value for r in subject.results}
    first = {r.step.kind: r for r in reversed(subject.results)}
    yield "probes", tuple(k for k in KINDS if k in ran), tuple(first[k] for k in Kind if k in first)
    yield from _exposure(subject)
    yield from _over_pool(subject)
    yield from _canary(subject)
    if subject.kind == "pair":
        yield from _held(subject)
        yield from _abort(subject)
    else:
        yield from _pairing(subject)
        yield from _disconnects(subject)


def _exposure(subject: _Subject) -> Iterator[Found]:
    exposed = [r for r in subject.results if r.verdict is Verdict.EXPOSED]
    depends = [r for r in exposed if r.step.kind is Kind.STAGING and _changed(r)]
    settled = [k for k in (Kind.OVER_POOL, Kind.STAGING) if subject.settled(k)]
    tried = [r for k in settled for r in subject.of(k) if _refusing(r.step)]
    walked = any(h.verdict in _OPEN for r in tried for h in r.halves)
    whole = all(k in settled for k in (Kind.OVER_POOL, Kind.STAGING) if subject.of(k))
    if exposed:
        yield "probe_exposed", True, exposed
    elif tried and whole and not walked and not subject.cut:
        yield "probe_exposed", False, tried
    independent = [r for r in subject.of(Kind.STAGING) if r.verdict is Verdict.INDEPENDENT]
    if depends:
        yield "probe_depends", True, depends
    elif independent and len(independent) == len(subject.of(Kind.STAGING)):
        yield "probe_depends", False, independent


def _changed(result: StepResult) -> bool:
    """Whether two answers to one prompt were unlike, while an ordinary prompt's were alike."""
    figures = {m.name: m.value for m in result.measures}
    one, two = (figures.get(name) for name in _HASHES)
    return figures.get("control steady") is True and one is not None and two is not None and one != two


def _refusing(step: Step) -> bool:
    return step.length is not None and step.length.side in _REFUSING


def _over_pool(subject: _Subject) -> Iterator[Found]:
    tried = [r for r in subject.of(Kind.OVER_POOL) if _refusing(r.step) or r.verdict is Verdict.EXPOSED]
    for word in OVER_POOL:
        some = [r for r in tried if r.verdict.value == word]
        if some:
            yield "probe_over_pool", word, some
            return


def _held(subject: _Subject) -> Iterator[Found]:
    tried = [r for r in subject.of(Kind.OVER_POOL) if _refusing(r.step)]
    held = {h.role: r for r in reversed(tried) if _refused(r) for h in r.halves if h.verdict in _WAITED}
    if held:
        word = "both" if {Role.PREFILL, Role.DECODE} <= held.keys() else next(iter(held)).value
        yield "probe_held", word, tuple(held.values())
    elif tried and subject.settled(Kind.OVER_POOL) and not subject.cut and not any(_waited(r) for r in tried):
        yield "probe_held", "none", tried


def _refused(result: StepResult) -> bool:
    return any(h.verdict in _REFUSED for h in result.halves)


def _waited(result: StepResult) -> bool:
    return any(h.verdict in (*_WAITED, *_OPEN) for h in result.halves)


def _canary(subject: _Subject) -> Iterator[Found]:
    ran = subject.of(Kind.CANARY)
    drifted = [r for r in ran if r.verdict is Verdict.DRIFTED]
    if drifted:
        yield "canary_drift", True, drifted
    elif ran and all(r.verdict is Verdict.STEADY for r in ran):
        yield "canary_drift", False, ran


def _abort(subject: _Subject) -> Iterator[Found]:
    ran = [r for r in subject.of(Kind.ABORT) if r.verdict in (Verdict.TOLD, Verdict.NOT_TOLD)]
    if not ran:
        return
    told = [role for role in (Role.PREFILL, Role.DECODE) if all(_told(r, role) for r in ran)]
    lost = [r for r in ran if r.verdict is Verdict.NOT_TOLD]
    if not lost:
        yield "abort_told", "both", ran
    elif len(told) < 2:
        yield "abort_told", f"{told[0].value} only" if told else "neither", lost
    outcomes = {o: r for r in reversed(ran) if (o := _outcome(r))}
    for word in _WORST_OUTCOMES:
        if word in outcomes:
            yield "abort_outcome", word, (outcomes[word],)
            return


def _told(result: StepResult, role: Role) -> bool:
    if result.verdict is Verdict.TOLD:
        return True
    return any(h.role is role and h.verdict is Verdict.TOLD for h in result.halves)


def _outcome(result: StepResult) -> str:
    word = next((m.value for m in result.measures if m.name == "hold_outcome"), "")
    if word in _OUTCOMES:
        return str(word)
    # Both halves were told in mid-transfer, holds are counted here, and none was made or ended.
    return "no hold" if word == _NONE_ENDED and result.verdict is Verdict.TOLD else ""


def _pairing(subject: _Subject) -> Iterator[Found]:
    ran = subject.of(Kind.PAIRING)
    unpaired = [r for r in ran if r.verdict is Verdict.UNPAIRED]
    if unpaired:
        yield "pairs_refusals", "no", unpaired
    elif ran and all(r.verdict is Verdict.PAIRED for r in ran) and Kind.PAIRING not in subject.unfinished:
        yield "pairs_refusals", "yes", ran


def _disconnects(subject: _Subject) -> Iterator[Found]:
    ran = [r for r in subject.of(Kind.ABORT) if r.verdict in (Verdict.TOLD, Verdict.NOT_TOLD)]
    by_form = {s: {r.verdict for r in ran if r.step.stream is s} for s in (True, False)}
    told, lost = {Verdict.TOLD}, {Verdict.NOT_TOLD}
    streamed, whole = by_form[True], by_form[False]
    if streamed == told and whole == told:
        yield "pairs_disconnects", "yes", ran
    elif streamed == lost and whole == lost:
        yield "pairs_disconnects", "no", ran
    elif streamed == lost and whole == told:
        yield "pairs_disconnects", "not streamed", ran
    elif Verdict.NOT_TOLD in streamed | whole:
        yield "pairs_disconnects", "not always", ran


def _fates(results: Iterable[StepResult]) -> Iterator[tuple[str, Found]]:
    """What engines do with a prompt that they reject, where the answers of both halves settle it."""
    seen: dict[str, dict[str, StepResult]] = {}
    for result in results:
        for name, fate in _fates_of(result):
            seen.setdefault(name, {}).setdefault(fate, result)
    for name, fates in seen.items():
        worst = next(f for f in _FATES if f in fates)
        yield name, ("reject_fate", worst, (fates[worst],))


def _fates_of(result: StepResult) -> Iterator[tuple[str, str]]:
    step = result.step
    if step.kind is not Kind.OVER_POOL or step.route.router is not None or step.length is None:
        return
    halves = {h.role: h for h in result.halves}
    prefill, decode = halves.get(Role.PREFILL), halves.get(Role.DECODE)
    if prefill is None or decode is None or step.route.truncates:
        return
    if step.length.side in (Side.PREFILL, Side.BOTH) and _walked(prefill, step.length.tokens):
        yield step.route.prefills[0], WALKS_ON
    if step.length.side is not Side.BOTH:
        return
    pair = prefill.verdict, decode.verdict
    if any(h.seen is not None and h.seen.error is ErrorClass.RELEASED for h in (prefill, decode)):
        return  # the door of one half does not show that of the other
    if pair == (Verdict.DOOR, Verdict.DOOR):
        yield step.route.prefills[0], RETIRED_AT_DOOR
        yield step.route.decodes[0], RETIRED_AT_DOOR
    elif prefill.verdict in _REFUSED and decode.verdict in _WAITED:
        # Decode must reject this prompt too, and would have, had it looked at the door. Prefill answers as
        # fast either way; whether it looked late, its own verdict has to say.
        yield step.route.decodes[0], RETIRED_LATE
        if prefill.verdict is Verdict.LATE:
            yield step.route.prefills[0], RETIRED_LATE


def _walked(half: HalfResult, tokens: int) -> bool:
    """A stub was answered with output. A streamed refusal counts one prompt token as well, and is none."""
    seen = half.seen
    stub = seen is not None and seen.answered and seen.prompt_tokens == 1 and tokens > 1
    return half.verdict is Verdict.WALKED_ON or stub
