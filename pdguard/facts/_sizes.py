"""Pools, context and role: facts that need several answers of an engine, put together honestly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pdguard.facts._read import ABSENT, Bad, describe, positive
from pdguard.facts._server_info import PATH, ROLES, SOURCE
from pdguard.facts.interface import FactSet, Grade
from pdguard.facts.versions import parse_version

HOW_LOADS = "SGLang 0.5.10 or newer answers /v1/loads; make it reachable"
LOGICAL_POOLS_SINCE = (0, 5, 21)


@dataclass(slots=True)
class Sizes:
    """What was seen so far about the sizes of one engine."""

    pools: list[int] = field(default_factory=list)
    swa_pools: list[int] = field(default_factory=list)
    swa_seen: bool = False
    ref: str = f"{PATH} internal_states[].memory_usage.token_capacity"
    why: str = ""
    formula: str = ""
    """Why pool and context do not give a rank's limit, or nothing where they do."""


def states_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of internal_states that are objects; the order of ranks in it is not fixed."""
    states = info.get("internal_states")
    return [s for s in states if isinstance(s, dict)] if isinstance(states, list) else []


def read_states(info: Mapping[str, Any], states: list[dict[str, Any]]) -> Sizes:
    """The pool of each rank that answered, and what stands against the plain admission formula."""
    sizes = Sizes()
    for state in states:
        usage = state.get("memory_usage")
        if not isinstance(usage, dict):
            sizes.why = f"{PATH} internal_states: no memory_usage"
            continue
        made = positive(usage.get("token_capacity", ABSENT))
        if isinstance(made, Bad):
            sizes.why = f"{sizes.ref}: {made.reason}"
        else:
            sizes.pools.append(made)
        swa = usage.get("token_capacity_swa")
        sizes.swa_seen = sizes.swa_seen or swa is not None
        window = positive(swa)
        if not isinstance(window, Bad):
            sizes.swa_pools.append(window)
    sizes.formula = _traps(info, sizes)
    return sizes


def _traps(info: Mapping[str, Any], sizes: Sizes) -> str:
    """Layouts whose admission limit does not follow from pool and context."""
    if sizes.swa_seen:
        return "sliding-window layers: admission uses a smaller effective pool, which is not told"
    if info.get("enable_kv_cache_sharding") not in (None, False):
        return "KV cache sharding: admission uses a multiple of the pool, which is not told"
    if info.get("dllm_algorithm") is not None:
        return "a diffusion model: admission takes a block off the limit, which is not told"
    dcp = info.get("dcp_size", 1)
    if dcp != 1:
        text = info.get("version")
        version = parse_version(text) if isinstance(text, str) else None
        if version is None or version.kind != "release" or version.release < LOGICAL_POOLS_SINCE:
            return "decode context parallelism: pools are told for one part, admission uses them all"
    return ""


def needs_loads(facts: FactSet, sizes: Sizes) -> bool:
    """Whether internal_states left ranks out, so that /v1/loads is worth asking."""
    return len(sizes.pools) != (facts.integer("dp_size") or 1)


def read_loads(sizes: Sizes, answer: Mapping[str, Any]) -> None:
    """The pools by /v1/loads, where it has more ranks than internal_states had."""
    loads = answer.get("loads", ABSENT)
    if not isinstance(loads, list):
        sizes.why = sizes.why or f"/v1/loads loads: expected a list, {describe(loads)} came"
        return
    pools: dict[int, int] = {}
    for number, load in enumerate(loads):
        made = (
            positive(load.get("max_total_num_tokens", ABSENT))
            if isinstance(load, dict)
            else Bad("not an object")
        )
        if isinstance(made, Bad):
            sizes.why = f"/v1/loads loads[].max_total_num_tokens: {made.reason}"
            continue
        rank = load.get("dp_rank")
        place = rank if type(rank) is int else -1 - number
        pools[place] = min(made, pools.get(place, made))
    if len(pools) > len(sizes.pools):
        sizes.pools = list(pools.values())
        sizes.ref = "/v1/loads loads[].max_total_num_tokens"


def settle_pools(facts: FactSet, sizes: Sizes) -> None:
    """Add pools, pool, swa_pool and rank_limit from all that was seen."""
    ranks, reported = facts.integer("dp_size"), facts.integer("reported_pool")
    if not sizes.pools and ranks == 1 and reported is not None:
        sizes.pools, sizes.ref = [reported], f"{PATH} max_total_num_tokens"
    _swa(facts, sizes)
    if ranks is None or len(sizes.pools) != ranks:
        if ranks is None:
            why = facts.why_missing("dp_size")
            reason = why.reason if why is not None else "the number of ranks is not known"
        else:
            reason = sizes.why or f"{len(sizes.pools)} of {ranks} data-parallel ranks told their pool"
        for name in ("pools", "pool", "rank_limit"):
            facts.miss(name, reason, HOW_LOADS)
        return
    # Ranks answer in any order. The first rank's pool, known from the top level, comes first.
    ordered = sorted(sizes.pools)
    if reported in ordered:
        ordered.remove(reported)
        ordered.insert(0, reported)
    facts.add("pools", tuple(ordered), Grade.CONFIGURED, SOURCE, sizes.ref)
    facts.add("pool", min(ordered), Grade.CONFIGURED, SOURCE, sizes.ref)
    _rank_limit(facts, sizes, min(ordered))


def _swa(facts: FactSet, sizes: Sizes) -> None:
    ref = f"{PATH} internal_states[].memory_usage.token_capacity_swa"
    if not sizes.swa_seen:
        facts.miss("swa_pool", "no sliding-window pool is told: the model has none, or the engine is old")
    elif len(sizes.swa_pools) != (facts.integer("dp_size") or 1):
        facts.miss("swa_pool", f"{ref}: not every rank told a whole number")
    else:
        facts.add("swa_pool", min(sizes.swa_pools), Grade.CONFIGURED, SOURCE, ref)


def _rank_limit(facts: FactSet, sizes: Sizes, smallest: int) -> None:
    """The smallest rank's limit: told where it is the first rank's, else computed where that is sound."""
    limit, reported = facts.integer("admission_limit"), facts.integer("reported_pool")
    context = facts.integer("context_length")
    alike = len(set(sizes.swa_pools)) <= 1
    if limit is not None and reported is not None and smallest == reported and alike:
        facts.add(
            "rank_limit",
            limit,
            Grade.CONFIGURED,
            SOURCE,
            f"{PATH} max_req_input_len (first rank, the smallest)",
        )
        return
    if sizes.formula:
        facts.miss("rank_limit", sizes.formula)
    elif context is None:
        why = facts.why_missing("context_length")
        facts.miss("rank_limit", why.reason if why is not None else "the context length is not known")
    elif limit is None or reported is None:
        facts.miss(
            "rank_limit",
            "the first rank's pool and limit are not both known, so the formula cannot be checked",
        )
    elif _limit(context, reported) != limit:
        facts.miss("rank_limit", "pool and context do not explain max_req_input_len of the first rank")
    elif _limit(context, smallest) < 1:
        facts.miss("rank_limit", "the smallest rank's pool is too small to admit anything")
    else:
        facts.add(
            "rank_limit",
            _limit(context, smallest),
            Grade.CONFIGURED,
            SOURCE,
            f"min(context, smallest of {sizes.ref}) - 6",
            shown=(context, smallest),
        )


def _limit(context: int, pool: int) -> int:
    return min(context - 1, pool - 1) - 5


def read_models(facts: FactSet, answer: Mapping[str, Any]) -> None:
    """The effective context length: the model's own card, LoRA cards (null, with a parent) passed over."""
    ref = "/v1/models data[].max_model_len"
    cards = answer.get("data", ABSENT)
    if not isinstance(cards, list):
        facts.miss("context_length", f"/v1/models data: expected a list, {describe(cards)} came")
        return
    lengths: set[int] = set()
    reason = "/v1/models lists no model of its own"
    for card in cards:
        if not isinstance(card, dict) or card.get("parent") is not None:
            continue
        made = positive(card.get("max_model_len", ABSENT))
        if isinstance(made, Bad):
            reason = f"{ref}: {made.reason}"
        else:
            lengths.add(made)
    if len(lengths) == 1:
        facts.add("context_length", lengths.pop(), Grade.CONFIGURED, SOURCE, ref)
    else:
        facts.miss("context_length", "/v1/models lists models of different lengths" if lengths else reason)


def context_from_flag(facts: FactSet) -> None:
    """Where /v1/models did not tell, the flag does, if it was given."""
    given = facts.integer("context_flag")
    if facts.get("context_length") is None and given is not None:
        facts.add("context_length", given, Grade.CONFIGURED, SOURCE, f"{PATH} context_length")


def read_role(facts: FactSet, info: Mapping[str, Any], states: list[dict[str, Any]]) -> bool:
    """The role now, by the ranks themselves. False where they do not tell and /model_info might."""
    if states and all("disaggregation_mode" in s for s in states):
        add_role(
            facts, [s["disaggregation_mode"] for s in states], f"{PATH} internal_states[].disaggregation_mode"
        )
        return True
    start = facts.get("start_role")
    may_switch = "enable_pd_role_switch" in info or _may_switch(facts.text("version"))
    if may_switch and facts.flag("role_switch") is not False:
        return False
    if start is not None:
        facts.put("role", start)  # before 0.5.21, or without the flag, a role never changes
        return True
    why = facts.why_missing("start_role")
    facts.miss("role", why.reason if why is not None else "the engine does not tell its role")
    return True


def _may_switch(version: str | None) -> bool:
    """Whether an engine of this version (or of none that is known) may have changed its role."""
    parsed = parse_version(version or "")
    return parsed is None or parsed.release >= (0, 5, 21)


def role_from_model_info(facts: FactSet, answer: Mapping[str, Any]) -> None:
    """The role now, by /model_info (0.5.21 or newer)."""
    add_role(facts, [answer.get("disaggregation_mode", ABSENT)], "/model_info disaggregation_mode")


def add_role(facts: FactSet, values: list[object], ref: str) -> None:
    """Add the role if all of `values` are the same known one."""
    roles: set[str] = set()
    for value in values:
        made = ROLES(value)
        if isinstance(made, Bad):
            facts.miss("role", f"{ref}: {made.reason}")
            return
        roles.add(made)
    if len(roles) == 1:
        facts.add("role", roles.pop(), Grade.CONFIGURED, SOURCE, ref)
    else:
        facts.miss("role", "ranks tell different roles: a role switch is under way, or failed halfway")
