"""Pairs: which prefill may serve a request with which decode, and the facts that follow for both together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pdguard.facts import history
from pdguard.facts.deriving import derive, missing_because, version_of
from pdguard.facts.handshake import outcome
from pdguard.facts.interface import Fact, FactSet, PairSubject, Subject
from pdguard.facts.windows import derive_windows

ARROW = "→"
MUST_MATCH = ("page_size", "kv_cache_dtype", "context_length", "backend")
LAYOUT = ("tp_size", "dp_size", "pp_size")
SPECULATIVE = ("speculative", "speculative_settings")
TIMEOUTS = ("bootstrap_timeout", "waiting_timeout", "transfer_timeout")
CHECKSUM_LAYOUT = ("tp_size", "pp_size", "page_size", "kv_cache_dtype")

MAX_PAIRS = 256
"""Above this many pairs, alike ones are judged once and reported as one."""


def build_pairs(
    prefills: Sequence[Subject], decodes: Sequence[Subject], routers: Sequence[tuple[Subject, frozenset[str]]]
) -> list[PairSubject]:
    """All pairs that may serve a request together, with their facts.

    `routers` gives each router with the names of the engines behind it; an empty set means all of them.
    Without routers every prefill may meet every decode. Above MAX_PAIRS, engines that differ in nothing but
    sizes are one class, and only the class's extremes are paired: they bound every window of the class.
    """
    fronts: list[tuple[Subject | None, frozenset[str]]] = [*routers] or [(None, frozenset())]
    collapse = len(prefills) * len(decodes) > MAX_PAIRS
    found: dict[tuple[str, str], PairSubject] = {}
    for router, names in fronts:
        behind_p = _classes([e for e in prefills if not names or e.name in names], collapse)
        behind_d = _classes([e for e in decodes if not names or e.name in names], collapse)
        for p_class, d_class in itertools.product(behind_p, behind_d):
            extremes = len(p_class.extremes) * len(d_class.extremes)
            alike = p_class.size * d_class.size - extremes + 1
            for p, d in itertools.product(p_class.extremes, d_class.extremes):
                pair = found.get((p.name, d.name))
                if pair is None:
                    pair = PairSubject("pair", f"{p.name}{ARROW}{d.name}", prefill=p, decode=d, alike=alike)
                    derive_pair(pair)
                    found[p.name, d.name] = pair
                _retries(pair, router)
                alike = 1  # the others of the class stand behind the first pair alone
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Class:
    """Alike engines: those with the smallest and the largest admission limit, and how many there are."""

    extremes: tuple[Subject, ...]
    size: int


def _classes(engines: Sequence[Subject], collapse: bool) -> list[_Class]:
    if not collapse:
        return [_Class((e,), 1) for e in engines]
    groups: dict[tuple[object, ...], list[Subject]] = {}
    for engine in engines:
        known = tuple(
            (n, None if n in _SIZES else f.value, f.grade) for n, f in engine.facts.known() if n not in _OWN
        )
        groups.setdefault(known, []).append(engine)
    return [_extremes(group) for group in groups.values()]


def _extremes(group: list[Subject]) -> _Class:
    def limit(engine: Subject) -> int:
        return engine.facts.integer("admission_limit") or 0

    low, high = min(group, key=limit), max(group, key=limit)
    return _Class((low,) if limit(low) == limit(high) else (low, high), len(group))


_OWN = frozenset(
    {
        *("pid", "started", "launch_flags", "process_flags", "titles"),
        *("aborted_requests", "failed_transfers", "holds_drained", "holds_timeout", "holds_error"),
    }
)
"""Facts that differ from engine to engine without any bearing on a pair."""

_SIZES = frozenset(
    {
        *("admission_limit", "rank_limit", "pool", "pools", "reported_pool", "metric_pool", "swa_pool"),
        *("max_total_tokens_flag"),
    }
)
"""Facts that may differ by a few tokens between engines that are otherwise the same."""


def _retries(pair: PairSubject, router: Subject | None) -> None:
    if router is None:
        return
    tries = router.facts.get("retries")
    if tries is None:
        why = missing_because("router", router.facts, ("retries",))
        pair.facts.miss("retries", why.reason, why.how)
        return
    old = pair.facts.integer("retries")
    if old is None or (isinstance(tries.value, int) and tries.value > old):
        pair.facts.entries["retries"] = tries


def derive_pair(pair: PairSubject) -> None:
    """Add every fact about a pair that follows from its two halves."""
    p, d, facts = pair.prefill.facts, pair.decode.facts, pair.facts
    derive_windows(facts, p, d)
    _differing(facts, "differs", p, d, MUST_MATCH)
    _differing(facts, "layout_differs", p, d, LAYOUT)
    _differing(facts, "timeouts_differ", p, d, TIMEOUTS)
    _any_differs(facts, "speculative_differs", p, d, SPECULATIVE)
    _any_differs(facts, "versions_differ", p, d, ("version",))
    _formats(facts, p, d)
    _handshake(facts, p, d)
    _hold_one_side(facts, p, d)
    _checksum(facts, p, d)
    _hold_margin(facts, p, d)
    waiting = d.get("waiting_timeout")
    if waiting is None:
        why = missing_because("engine", d, ("waiting_timeout",))
        facts.miss("held_seconds", why.reason, why.how)
    else:
        facts.put("held_seconds", waiting)


def _miss(facts: FactSet, name: str, halves: tuple[FactSet, FactSet], needs: tuple[str, ...]) -> None:
    for half in halves:
        if any(half.get(n) is None for n in needs):
            why = missing_because("engine", half, needs)
            facts.miss(name, why.reason, why.how)
            return
    facts.miss(name, "what the two halves say does not settle it")


def _both(p: FactSet, d: FactSet, names: tuple[str, ...]) -> list[Fact | None]:
    return [half.get(n) for n in names for half in (p, d)]


def _differing(facts: FactSet, name: str, p: FactSet, d: FactSet, names: tuple[str, ...]) -> None:
    """List what differs. A difference found is a fact even where other settings are not known."""
    differ = tuple(n for n in names if _unlike(p, d, n))
    if differ:
        derive(facts, name, differ, _both(p, d, differ))
    elif any(p.get(n) is None or d.get(n) is None for n in names):
        _miss(facts, name, (p, d), names)
    else:
        derive(facts, name, (), _both(p, d, names))


def _unlike(p: FactSet, d: FactSet, name: str) -> bool:
    one, two = p.get(name), d.get(name)
    return one is not None and two is not None and one.value != two.value


def _any_differs(facts: FactSet, name: str, p: FactSet, d: FactSet, names: tuple[str, ...]) -> None:
    differ = [n for n in names if _unlike(p, d, n)]
    if differ:
        derive(facts, name, True, _both(p, d, tuple(differ)))
    elif any(p.get(n) is None or d.get(n) is None for n in names):
        _miss(facts, name, (p, d), names)
    else:
        derive(facts, name, False, _both(p, d, names))


def _formats(facts: FactSet, p: FactSet, d: FactSet) -> None:
    versions = version_of(p), version_of(d)
    formats = [None if v is None else v.lookup(history.ACK_FORMAT) for v in versions]
    if None in formats:
        _miss(facts, "formats", (p, d), ("version",))
        return
    same = "same" if formats[0] == formats[1] else "different"
    derive(facts, "formats", same, _both(p, d, ("version",)))


def _handshake(facts: FactSet, p: FactSet, d: FactSet) -> None:
    names = ("handshake", "handshake_cleared", "handshake_failed_send", "handshake_ranks")
    backend = d.text("backend") or p.text("backend")
    decode, prefill = version_of(d), version_of(p)
    holds = d.text("hold"), p.text("hold")
    result = None
    if backend and decode and prefill and holds[0] and (holds[1] or holds[0] != "on"):
        result = outcome(backend, decode, prefill, holds[0] == "on", holds[1] == "on")
    inputs = [p.get("version"), d.get("version"), d.get("backend"), d.get("hold"), p.get("hold")]
    words = (
        (None,) * 4
        if result is None
        else (result.in_flight, result.cleared, result.failed_send, result.ranks)
    )
    for name, word in zip(names, words, strict=True):
        if word is None:
            _miss(facts, name, (d, p), ("version", "backend", "hold"))
        else:
            derive(facts, name, word, inputs)


def _hold_one_side(facts: FactSet, p: FactSet, d: FactSet) -> None:
    one, two = p.get("hold"), d.get("hold")
    if one is None or two is None:
        _miss(facts, "hold_one_side", (p, d), ("hold",))
        return
    derive(facts, "hold_one_side", (one.value == "on") != (two.value == "on"), [one, two])


def _hold_margin(facts: FactSet, p: FactSet, d: FactSet) -> None:
    """T_hold counts on decode; the call that it must outlast runs in prefill."""
    hold, bound = d.number("t_hold"), p.number("transfer_timeout")
    if hold is None or bound is None:
        half, name = (d, "t_hold") if hold is None else (p, "transfer_timeout")
        why = missing_because("engine", half, (name,))
        facts.miss("hold_margin", why.reason, why.how)
        return
    derive(facts, "hold_margin", hold - bound, [d.get("t_hold"), p.get("transfer_timeout")])


def _checksum(facts: FactSet, p: FactSet, d: FactSet) -> None:
    flags = [p.get("checksum"), d.get("checksum")]
    supported = [p.get("checksum_supported"), d.get("checksum_supported")]
    lacking = [f for f in supported if f is not None and f.value is False]
    if lacking:
        derive(facts, "checksum", "not supported", lacking)
    elif None in flags:
        _miss(facts, "checksum", (p, d), ("checksum",))
    elif all(f is not None and f.value is False for f in flags):
        derive(facts, "checksum", "off", flags)
    elif any(f is not None and f.value is False for f in flags):
        derive(facts, "checksum", "one side", flags)
    elif any(_unlike(p, d, n) for n in CHECKSUM_LAYOUT):
        differ = tuple(n for n in CHECKSUM_LAYOUT if _unlike(p, d, n))
        derive(facts, "checksum", "layouts differ", [*flags, *_both(p, d, differ)])
    elif any(p.get(n) is None or d.get(n) is None for n in CHECKSUM_LAYOUT):
        _miss(facts, "checksum", (p, d), CHECKSUM_LAYOUT)
    else:
        derive(facts, "checksum", "both", [*flags, *_both(p, d, CHECKSUM_LAYOUT)])
