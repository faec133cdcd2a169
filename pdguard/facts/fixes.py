"""Facts from fix states: what the source that an engine runs makes it do, whatever its version says.

Each fact here has a twin in `derived` that rests on the version. The source is the stronger evidence
(fingerprinted), so where it was read it alone counts: a fix that is partial or unknown in it leaves the fact
unknown, whatever the version says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pdguard.facts import history
from pdguard.facts.deriving import version_of
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade, Missing, Value
from pdguard.facts.versions import Release
from pdguard.fingerprint.model import FixFinding, State

SOURCE = "source"
PRESENT, ABSENT, PARTIAL = State.PRESENT, State.ABSENT, State.PARTIAL
LISTS = ("fixes_present", "fixes_partial", "fixes_absent", "fixes_unknown", "unmerged")

FIX_FACTS = (*LISTS, "source_disagrees", "hardened")

States = Mapping[str, FixFinding]


_ORDER = (State.NOT_APPLICABLE, PRESENT, PARTIAL, ABSENT, State.UNKNOWN)
"""A group of processes holds a fix only as far as the one that holds least of it."""


def weakest(trees: Sequence[Sequence[FixFinding]]) -> list[FixFinding]:
    """For each fix the finding of the tree that holds least of it (a leader and its followers)."""
    return [max(found, key=lambda f: _ORDER.index(f.state)) for found in zip(*trees, strict=True)]


def miss_fix_facts(facts: FactSet, reason: str, how: str = "") -> None:
    """Say why nothing is known of the fixes that an engine holds."""
    for name in FIX_FACTS:
        facts.miss(name, reason, how)


def add_fix_facts(
    facts: FactSet, findings: Sequence[FixFinding], hardened: Collection[str] = frozenset()
) -> None:
    """Add which fixes the source holds, and everything that follows from them for one engine.

    `hardened` are those that pdguard says it put in: they are no disagreement with the version, and where
    only a part of one can be had it is not half done.
    """
    states = {f.fix.id: f for f in findings}
    ours = {name for name in hardened if name in states and states[name].state in (PRESENT, PARTIAL)}
    facts.put(
        "hardened", Fact(tuple(sorted(ours)), Grade.FINGERPRINTED, (Evidence(SOURCE, "notice", len(ours)),))
    )
    _lists(facts, findings, ours)
    _disagreement(facts, findings, ours)
    backend = facts.text("backend") or ""
    _admission(facts, states)
    _hold(facts, states, backend)
    _acknowledgement(facts, states, backend)
    _told(facts, states, backend)
    _flags(facts, states)
    _bound(facts, states)
    _unsettled(facts, states)


def _add(facts: FactSet, name: str, value: Value, *findings: FixFinding) -> None:
    """A fact that rests on these fixes; the evidence names the places that decided."""
    evidence = []
    for finding in findings:
        spots = [f"{s.file}:{s.line}" for s in finding.spots] or ["no such code"]
        evidence += [Evidence(SOURCE, f"{finding.fix.id} {spot}", finding.state.value) for spot in spots[:4]]
    facts.put(name, Fact(value, Grade.FINGERPRINTED, tuple(evidence)))


def _lists(facts: FactSet, findings: Sequence[FixFinding], ours: Collection[str]) -> None:
    merged = [f for f in findings if f.fix.merged]
    by_state = {
        "fixes_present": [f for f in merged if f.state is PRESENT],
        "fixes_partial": [f for f in merged if f.state is PARTIAL and f.fix.id not in ours],
        "fixes_absent": [f for f in merged if f.state is ABSENT],
        "fixes_unknown": [f for f in merged if f.state is State.UNKNOWN],
        "unmerged": [
            f for f in findings if not f.fix.merged and f.state in (PRESENT, PARTIAL) and f.fix.id not in ours
        ],
    }
    for name, found in by_state.items():
        ids = tuple(f.fix.id for f in found)
        facts.put(name, Fact(ids, Grade.FINGERPRINTED, (Evidence(SOURCE, "fix catalogue", ids),)))


def _disagreement(facts: FactSet, findings: Sequence[FixFinding], ours: Collection[str]) -> None:
    """Fixes that the release should hold and does not, and the other way round."""
    version = version_of(facts)
    if version is None or version.kind != "release":
        facts.miss("source_disagrees", "the version is no release that could be compared with")
        return
    against = []
    for finding in findings:
        first = _release(finding.fix.first_release)
        if not finding.fix.merged or first is None or finding.fix.id in ours:
            continue
        due = version.release >= first
        # A fix that came to its backends one after the other is partial for a while upstream, too.
        partial = finding.state is PARTIAL and due and not finding.backends
        if partial or (finding.state in (PRESENT, ABSENT) and due != (finding.state is PRESENT)):
            against.append(finding)
    words = tuple(f"{f.fix.id} {f.state.value}" for f in against)
    used = against or [f for f in findings if f.fix.merged]
    _add(facts, "source_disagrees", words, *used[:8])


DEPENDS: Mapping[str, tuple[str, ...]] = {
    "reject_fate": ("38935", "36988"),
    "refusal_told": ("X6",),
    "hold_support": ("35049", "35360", "41023", "37077"),
    "hold_scope": ("35049", "35360", "41404"),
    "ack_format": ("35049", "37077"),
    "ack_kept": ("40645", "37077"),
    "ack_every_rank": ("41402",),
    "early_ack": ("43719", "X2", "X3", "37077"),
    "prefill_told": ("27372",),
    "batch_cap_support": ("32758",),
    "fake_receiver_fault": ("X4",),
    "offload_slot_fault": ("24226",),
    "offload_retract_fault": ("30899",),
    "restore_fault": ("43562",),
    "rank_local_hold": ("X1",),
}
"""Facts that the source settles, and the fixes they rest on."""


def _unsettled(facts: FactSet, states: States) -> None:
    """Say of each fact that the source was read and does not settle it; the version may then not either."""
    for name, ids in DEPENDS.items():
        if facts.get(name) is not None:
            continue
        open_ = [
            f"{i} is {states[i].state.value}"
            for i in ids
            if i in states and states[i].state in (PARTIAL, State.UNKNOWN)
        ]
        if open_:
            facts.entries[name] = Missing(
                f"the source was read and does not settle it ({', '.join(open_)})",
                "`pdguard inspect` shows the places",
                final=True,
            )


def _release(text: str) -> Release | None:
    parts = text.split(".")
    return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) == 3 else None


def _is(states: States, fix: str, backend: str = "") -> bool | None:
    """Whether a fix is there, for a backend where one is named; None where that is not settled."""
    finding = states.get(fix)
    if finding is None:
        return None
    state = finding.backends.get(backend, finding.state) if backend else finding.state
    return {PRESENT: True, ABSENT: False, State.NOT_APPLICABLE: False}.get(state)


def _settled(states: States, fix: str, backend: str = "") -> bool | None:
    """As `_is`; of a fix that is there in part, the parts of that backend alone count, or the shared ones."""
    whole, finding = _is(states, fix, backend), states.get(fix)
    if whole is not None or finding is None or finding.state is not PARTIAL:
        return whole
    own = {p.state for p in finding.parts if not p.aside and p.backends == ((backend,) if backend else ())}
    own.discard(State.NOT_APPLICABLE)
    return {PRESENT: True, ABSENT: False}.get(own.pop()) if len(own) == 1 else None


def _admission(facts: FactSet, states: States) -> None:
    door, result = _is(states, "38935"), _is(states, "36988")
    used = [states[i] for i in ("38935", "36988") if i in states]
    if door is True:
        _add(facts, "reject_fate", history.RETIRED_AT_DOOR, *used[:1])
    elif door is False and result is True:
        _add(facts, "reject_fate", history.RETIRED_LATE, *used)
    elif door is False and result is False and _writes_to_finish(facts):
        _add(facts, "reject_fate", history.WALKS_ON, *used)


def _writes_to_finish(facts: FactSet) -> bool:
    """0.4.10 finished a rejected request at intake; what follows there was never run, so nothing is said."""
    version = version_of(facts)
    return version is None or version.release >= (0, 5, 5)


def _hold(facts: FactSet, states: States, backend: str) -> None:
    code = _is(states, "35360" if backend == "nixl" else "35049", backend)
    base = [states[i] for i in ("35049", "35360") if i in states]
    if code is False:
        _add(facts, "hold_support", "no such code", *base)
        _add(facts, "hold_scope", "none", *base)
        return
    gate = _is(states, "41023")
    if code is None or gate is None or not backend:
        return
    gated = states["41023"]
    scope = _is(states, "41404")
    if scope is not None:
        _add(facts, "hold_scope", "every failure" if scope else "decode aborts", *base, states["41404"])
    _default(facts, gate, gated)
    if not gate:
        if backend != "other":
            _add(facts, "hold_support", "yes", *base, gated)
    elif backend in ("mooncake", "nixl", "ascend"):
        _add(facts, "hold_support", "yes", *base, gated)
    elif backend == "mori":
        can = _settled(states, "37077", "mori")
        if can is not None:
            _add(facts, "hold_support", "yes" if can else "not on this backend", gated, states["37077"])
    else:
        _add(facts, "hold_support", "not on this backend", gated)


def _default(facts: FactSet, gate: bool, finding: FixFinding) -> None:
    """Where the variable is unset or not understood, the default that the source itself gives counts."""
    raw, misread = facts.get("hold_raw"), facts.items("env_not_understood")
    if raw is None or misread is None:
        return
    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    if raw.value == "unset" or name in misread:
        spots = tuple(
            Evidence(SOURCE, f"{finding.fix.id} {s.file}:{s.line}", gate) for s in finding.spots[:2]
        )
        setting = facts.get("hold_setting")
        if setting is None or setting.value is not gate:
            facts.entries["hold_setting"] = Fact(gate, Grade.CONFIGURED, (*raw.evidence, *spots))


def _acknowledgement(facts: FactSet, states: States, backend: str) -> None:
    base = _is(states, "35360" if backend == "nixl" else "35049", backend)
    tagged = _settled(states, "37077")
    if base is not None and (tagged is not None or not base):
        wire = history.NO_FORMAT if not base else history.NEW_FORMAT if tagged else history.OLD_FORMAT
        _add(facts, "ack_format", wire, *(states[i] for i in ("35049", "37077") if i in states))
    kept = "37077" if backend in ("nixl", "mori") else "40645"
    value = _settled(states, kept, backend) if kept == "37077" else _is(states, kept, backend)
    if value is not None and backend in ("mooncake", "ascend", "nixl", "mori"):
        _add(facts, "ack_kept", value, states[kept])
    every = _is(states, "41402")
    if every is not None:
        _add(facts, "ack_every_rank", every, states["41402"])
    poison = {"mooncake": "43719", "ascend": "43719", "nixl": "X3", "mori": "X2"}.get(backend)
    if poison is None or base is None:
        return
    safe = _is(states, poison, backend)
    acknowledges = base and not (backend == "mori" and not _settled(states, "37077", "mori"))
    if states[poison].state is PARTIAL and acknowledges:
        safe = False  # one failed send that is still acknowledged is enough
    if safe is not None:
        _add(facts, "early_ack", acknowledges and not safe, states[poison])


def _told(facts: FactSet, states: States, backend: str) -> None:
    told = _is(states, "27372", backend)
    if told is not None and backend in ("mooncake", "ascend", "nixl", "mori"):
        _add(facts, "prefill_told", told, states["27372"])
    refusal = _is(states, "X6", backend)
    ranks = facts.value("dp_size")
    if refusal and isinstance(ranks, int) and ranks > 1 and facts.value("role") == "prefill":
        return  # Whether decode learns which of them has the room is the router's doing.
    if refusal is not None and backend:
        spoken = backend in ("mooncake", "ascend", "nixl")
        spoken = spoken and facts.value("allocation_policy") != "prefill_complete"
        _add(facts, "refusal_told", refusal and spoken, states["X6"])


def _bound(facts: FactSet, states: States) -> None:
    """Where the source has the batch cap, it reads the variable, whatever releases know it."""
    finding, raw, version = states.get("32758"), facts.get("batch_cap_raw"), version_of(facts)
    if finding is None or finding.state is not PRESENT:
        return
    if raw is None:
        unknown_to_it = version is not None and version.lookup(history.BATCH_CAP) is False
        if unknown_to_it and facts.get("batch_cap") is not None:
            gap = facts.why_missing("batch_cap_raw")
            said = "the source reads the variable, unknown to this version, and what is set was not read"
            facts.entries["batch_cap"] = Missing(said, gap.how if gap else "", final=True)
        return
    try:
        value = int(str(raw.value))
    except ValueError:
        value = 0  # unset, or no number: no cap
    known = facts.get("batch_cap")
    if known is None or known.value != value:
        spots = [Evidence(SOURCE, f"{finding.fix.id} {s.file}:{s.line}", "reads it") for s in finding.spots]
        facts.entries["batch_cap"] = Fact(value, Grade.CONFIGURED, (*raw.evidence, *spots[:2]))


def _flags(facts: FactSet, states: States) -> None:
    """Facts that are one fix, or its absence."""
    for name, fix, when_present in (
        ("batch_cap_support", "32758", True),
        ("fake_receiver_fault", "X4", False),
        ("offload_slot_fault", "24226", False),
        ("offload_retract_fault", "30899", False),
        ("restore_fault", "43562", False),
    ):
        finding = states.get(fix)
        if finding is None or finding.state in (State.UNKNOWN, PARTIAL):
            continue
        if finding.state is State.NOT_APPLICABLE:
            _add(facts, name, False, finding)
            continue
        _add(facts, name, (finding.state is PRESENT) is when_present, finding)
    agreed = _is(states, "X1")
    sizes = [facts.integer(n) for n in ("tp_size", "pp_size")]
    if agreed is not None and None not in sizes:
        many = any(size is not None and size > 1 for size in sizes)
        local = not agreed and many and _is(states, "35049") is not False
        _add(facts, "rank_local_hold", local, states["X1"])
