"""Facts about a pair of a prefill and a decode that follow from its two halves together."""

from __future__ import annotations

from pdguard.facts import history
from pdguard.facts.deriving import derive, missing_because, version_of
from pdguard.facts.handshake import Decode, Prefill, outcome
from pdguard.facts.interface import Fact, FactSet, PairSubject
from pdguard.facts.windows import derive_windows

MUST_MATCH = ("page_size", "kv_cache_dtype", "context_length", "backend")
LAYOUT = ("tp_size", "dp_size", "pp_size")
SPECULATIVE = ("speculative", "speculative_settings")
TIMEOUTS = ("bootstrap_timeout", "waiting_timeout", "transfer_timeout")
CHECKSUM_LAYOUT = ("pp_size", "page_size", "kv_cache_dtype")
"""What the layout under a checksum surely depends on. Attention TP matters too, unless the model is MLA."""


def derive_pair(pair: PairSubject) -> None:
    """Add every fact about a pair that follows from its two halves."""
    p, d, facts = pair.prefill.facts, pair.decode.facts, pair.facts
    derive_windows(facts, p, d)
    _differing(facts, "differs", p, d, MUST_MATCH)
    _differing(facts, "layout_differs", p, d, LAYOUT)
    _differing(facts, "timeouts_differ", p, d, TIMEOUTS)
    _any_differs(facts, "speculative_differs", p, d, SPECULATIVE)
    _any_differs(facts, "versions_differ", p, d, ("version",))
    _bootstrap_answer(facts, p, d)
    _refusals(facts, p, d)
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


def _bootstrap_answer(facts: FactSet, p: FactSet, d: FactSet) -> None:
    """An older decode reads prefill's layout into a fixed set of fields, and a newer one's are too many."""
    versions = version_of(p), version_of(d)
    known = [None if v is None else v.lookup(history.BOOTSTRAP_ANSWER) for v in versions]
    if known[0] is None or known[1] is None:
        _miss(facts, "answer_refused", (p, d), ("version",))
        return
    derive(facts, "answer_refused", known[0] > known[1], _both(p, d, ("version",)))


def _refusals(facts: FactSet, p: FactSet, d: FactSet) -> None:
    """Both doors have to tell: which one refuses is the request's choice."""
    told = [half.get("refusal_told") for half in (p, d)]
    silent = [f for f in told if f is not None and f.value is False]
    if silent:
        derive(facts, "refusal_releases", False, silent)
    elif None in told:
        _miss(facts, "refusal_releases", (p, d), ("refusal_told",))
    else:
        derive(facts, "refusal_releases", True, told)


def _formats(facts: FactSet, p: FactSet, d: FactSet) -> None:
    one, two = p.get("ack_format"), d.get("ack_format")
    if one is None or two is None:
        _miss(facts, "formats", (p, d), ("ack_format",))
        return
    derive(facts, "formats", "same" if one.value == two.value else "different", [one, two])


OF_DECODE = ("backend", "hold", "hold_scope", "ack_format")
OF_PREFILL = ("hold", "ack_format", "ack_kept", "ack_every_rank")


def _handshake(facts: FactSet, p: FactSet, d: FactSet) -> None:
    names = ("handshake", "handshake_cleared", "handshake_failed_send", "handshake_ranks")
    holds = d.text("hold")
    result = None
    # A failed NIXL send was not modelled, so whether one is acknowledged is not asked there.
    of_prefill = OF_PREFILL if d.text("backend") == "nixl" else (*OF_PREFILL, "early_ack")
    # MORI learns to send an acknowledgement and to read one together.
    of_decode = (*OF_DECODE, "ack_kept") if d.text("backend") == "mori" else OF_DECODE
    used = [d.get("hold")]
    if holds == "on":
        used = [*(d.get(n) for n in of_decode), *(p.get(n) for n in of_prefill)]
    if d.get("backend") is not None and all(f is not None for f in used):
        decode = Decode(
            holds == "on",
            d.text("hold_scope") == "every failure",
            d.text("ack_format") or history.NO_FORMAT,
            d.text("backend") != "mori" or bool(d.flag("ack_kept")),
        )
        prefill = Prefill(
            p.text("hold") == "on",
            p.text("ack_format") or history.NO_FORMAT,
            bool(p.flag("ack_kept")),
            bool(p.flag("ack_every_rank")),
            bool(p.flag("early_ack")),
        )
        result = outcome(d.text("backend") or "", decode, prefill)
    words = (
        (None,) * 4
        if result is None
        else (result.in_flight, result.cleared, result.failed_send, result.ranks)
    )
    for name, word in zip(names, words, strict=True):
        if word is not None:
            derive(facts, name, word, used)
        elif any(d.get(n) is None for n in of_decode):
            _miss(facts, name, (d, d), of_decode)
        else:
            _miss(facts, name, (p, p), of_prefill)


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
    elif any(p.get(n) is None or d.get(n) is None for n in (*CHECKSUM_LAYOUT, "attention_tp")):
        _miss(facts, "checksum", (p, d), (*CHECKSUM_LAYOUT, "attention_tp"))
    elif _unlike(p, d, "attention_tp"):
        facts.miss(
            "checksum", "attention TP differs: whether the layouts do depends on the model's attention"
        )
    else:
        derive(facts, "checksum", "both", [*flags, *_both(p, d, (*CHECKSUM_LAYOUT, "attention_tp"))])
