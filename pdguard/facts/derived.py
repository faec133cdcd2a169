"""Facts about one engine that follow from others: fate of rejects, hold in force, margins."""

from __future__ import annotations

from collections.abc import Mapping

from pdguard.facts import history
from pdguard.facts.deriving import derive, from_version, is_final, missing_because, version_of
from pdguard.facts.interface import Fact, FactSet
from pdguard.facts.versions import Release

Flags = Mapping[Release, bool | None]

HOLD_YES = "yes"
HOLD_NO_CODE = "no such code"
HOLD_NOT_BACKEND = "not on this backend"


def derive_engine(facts: FactSet) -> None:
    """Add every fact about an engine that follows from its version, settings and environment."""
    version = version_of(facts)
    if version is not None:
        derive(facts, "version_kind", version.kind, [facts.get("version")])
    backend = facts.text("backend")
    from_version(facts, "reject_fate", history.REJECT_FATE)
    from_version(facts, "refusal_told", history.REFUSAL_TOLD)
    from_version(facts, "hold_scope", history.HOLD_SCOPE)
    from_version(facts, "ack_format", history.ACK_FORMAT)
    from_version(facts, "ack_every_rank", history.ACK_EVERY_RANK)
    from_version(facts, "batch_cap_support", history.BATCH_CAP)
    from_version(facts, "fake_receiver_fault", history.FAKE_RECEIVER_FAULT)
    from_version(facts, "offload_slot_fault", history.OFFLOAD_SLOT_FAULT)
    from_version(facts, "offload_retract_fault", history.OFFLOAD_RETRACT_FAULT)
    from_version(facts, "restore_fault", history.RESTORE_FAULT)
    if facts.get("checksum_supported") is None:
        from_version(facts, "checksum_supported", history.CHECKSUM_FLAG)
    by_backend: tuple[tuple[str, Mapping[str, Flags]], ...] = (
        ("early_ack", history.EARLY_ACK),
        ("ack_kept", history.ACK_KEPT),
        ("prefill_told", history.PREFILL_TOLD),
    )
    for name, tables in by_backend:
        from_version(facts, name, tables.get(backend or ""), needs=("backend",))
    nixl = history.NIXL_ABORT_KILLS if backend == "nixl" else {(0, 4, 10): False}
    from_version(facts, "nixl_abort_kills", nixl, needs=("backend",))
    _attention_tp(facts)
    _without_flag(facts)
    _env_read(facts)
    _hold_support(facts, backend)
    _hold(facts)
    _rank_local(facts)
    _host_receive(facts)
    _outcomes(facts)


def _attention_tp(facts: FactSet) -> None:
    names = ("tp_size", "dp_size", "dp_attention")
    tp, dp, shared = facts.integer("tp_size"), facts.integer("dp_size"), facts.flag("dp_attention")
    if tp is None or dp is None or shared is None:
        why = missing_because("engine", facts, names)
        facts.miss("attention_tp", why.reason, why.how)
        return
    derive(facts, "attention_tp", max(1, tp // dp) if shared else tp, [facts.get(n) for n in names])


def _without_flag(facts: FactSet) -> None:
    """A release that has no such flag has the thing switched off; the version is the evidence for it."""
    absent: tuple[tuple[str, Flags, str | bool], ...] = (
        ("kv_canary", history.CANARY_FLAG, "none"),
        ("decode_radix_cache", history.DECODE_RADIX_FLAG, False),
        ("checksum", history.CHECKSUM_FLAG, False),
    )
    for name, table, off in absent:
        if facts.get(name) is None and from_version_quietly(facts, table) is False:
            derive(facts, name, off, [facts.get("version")])


def _env_read(facts: FactSet) -> None:
    """An engine that shows its variables over HTTP has its environment read as well."""
    if facts.get("env_read") is None and facts.get("hold_raw") is not None:
        derive(facts, "env_read", True, [facts.get("hold_raw")])


def _hold_support(facts: FactSet, backend: str | None) -> None:
    if is_final(facts, "hold_support"):
        return
    code = from_version_quietly(facts, history.HOLD_CODE)
    if code is False:
        derive(facts, "hold_support", HOLD_NO_CODE, [facts.get("version")])
        return
    gate = from_version_quietly(facts, history.HOLD_GATE)
    if code is None or gate is None or backend is None:
        why = missing_because("engine", facts, ("version", "backend"))
        facts.miss("hold_support", why.reason, why.how)
        return
    inputs = [facts.get("version"), facts.get("backend")]
    if not gate and backend != "other":
        derive(facts, "hold_support", HOLD_YES, inputs)
        return
    opened = from_version_quietly(facts, history.HOLD_GATE_OPEN.get(backend, {})) if gate else None
    if opened is None:
        facts.miss("hold_support", "whether this backend can hold was not examined on this version")
        return
    derive(facts, "hold_support", HOLD_YES if opened else HOLD_NOT_BACKEND, inputs)


def _hold(facts: FactSet) -> None:
    """The hold in force. A setting that is off needs no version to be judged; one that is on does."""
    support, setting = facts.get("hold_support"), facts.get("hold_setting")
    if support is not None and support.value != HOLD_YES:
        derive(facts, "hold", "impossible", [support])
    elif setting is not None and setting.value is False:
        derive(facts, "hold", "off", [setting])
    elif setting is None or support is None:
        why = missing_because("engine", facts, ("hold_setting", "hold_support"))
        facts.miss("hold", why.reason, why.how)
    else:
        _hold_unless_zero(facts, support, setting)


def _hold_unless_zero(facts: FactSet, support: Fact, setting: Fact) -> None:
    kind = facts.get("t_hold_kind")
    if (facts.text("role") or facts.text("declared_role")) == "prefill":
        derive(facts, "hold", "on", [support, setting])  # T_hold is read by decode only
        return
    if kind is None:
        why = missing_because("engine", facts, ("t_hold_kind",))
        facts.miss("hold", why.reason, why.how)
        return
    at_once = kind.value in ("zero", "negative")
    if kind.value == "nan":
        nan = from_version_quietly(facts, history.NAN_RELEASES_AT_ONCE)
        if nan is None:
            facts.miss("hold", "what a T_hold of nan does was not examined on this version")
            return
        at_once = nan
    derive(facts, "hold", "off" if at_once else "on", [support, setting, kind])


def _rank_local(facts: FactSet) -> None:
    if is_final(facts, "rank_local_hold"):
        return
    local = from_version_quietly(facts, history.RANK_LOCAL_HOLD)
    sizes = [facts.integer(n) for n in ("tp_size", "pp_size")]
    if local is False:
        derive(facts, "rank_local_hold", False, [facts.get("version")])
    elif local is None or None in sizes:
        why = missing_because("engine", facts, ("version", "tp_size", "pp_size"))
        facts.miss("rank_local_hold", why.reason, why.how)
    else:
        many = any(size is not None and size > 1 for size in sizes)
        inputs = [facts.get("version"), facts.get("tp_size"), facts.get("pp_size")]
        derive(facts, "rank_local_hold", many, inputs)


def _host_receive(facts: FactSet) -> None:
    if from_version_quietly(facts, history.HOST_RECEIVE_FLAG) is False:
        derive(facts, "host_receive", "off", [facts.get("version")])
        return
    threshold = facts.number("host_receive_threshold")
    off_at_one = from_version_quietly(facts, history.HOST_RECEIVE_OFF_AT_ONE)
    if threshold is None or off_at_one is None:
        why = missing_because("engine", facts, ("host_receive_threshold", "version"))
        facts.miss("host_receive", why.reason, why.how)
        return
    if off_at_one:
        meaning = "off" if threshold >= 1 else "always" if threshold <= 0 else "partly"
    else:
        meaning = "off" if threshold <= 0 else "partly"
    derive(facts, "host_receive", meaning, [facts.get("version"), facts.get("host_receive_threshold")])


def _outcomes(facts: FactSet) -> None:
    """Whether releases of held KV are counted at all; counters appear only with the first event."""
    metrics = facts.get("metrics_on")
    exists = from_version_quietly(facts, history.OUTCOME_METRIC)
    counted = [facts.get(n) for n in ("holds_drained", "holds_timeout", "holds_error")]
    if any(f is not None and f.value for f in counted):
        derive(facts, "outcomes", "counted", counted)
    elif metrics is not None and metrics.value is False:
        derive(facts, "outcomes", "metrics off", [metrics])
    elif exists is False:
        derive(facts, "outcomes", "no such metric", [facts.get("version")])
    elif any(f is not None for f in counted):
        derive(facts, "outcomes", "none yet", counted)
    else:
        why = missing_because("engine", facts, ("metrics_on", "holds_drained", "version"))
        facts.miss("outcomes", why.reason, why.how)


def from_version_quietly(facts: FactSet, table: Flags) -> bool | None:
    """What `table` says for the engine's version, without adding a fact."""
    version = version_of(facts)
    return None if version is None else version.lookup(table)
