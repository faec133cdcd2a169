"""What /server_info tells: flags, sizes and layout, as typed facts. Nothing else of it is kept.

The answer also carries API keys, paths and the whole command line. Every fact comes from one row of a table
or one function below; what no row names is dropped with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdguard.facts import _read
from pdguard.facts._read import ABSENT, Bad, decimal, describe, flag, positive, whole, word
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade
from pdguard.facts.versions import EngineVersion, parse_version

PATH = "/server_info"
SOURCE = "http"
CHECKSUM_SINCE = (0, 5, 21)

ROLES = word(frozenset({"prefill", "decode", "null"}))
KV_DTYPES = frozenset(
    {"auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16", "fp4_e2m1"}
    | {"float16", "fp16", "half", "float32"}
)
KV_DTYPE = word(KV_DTYPES)
RETRACTION = word(frozenset({"cpu_tensor", "host_pool", "none"}))
EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "FROZEN_KV_MTP"})
ALGORITHMS = EAGLE_FAMILY | {"STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO"}
_ALGORITHM = word(ALGORITHMS, aliases={"NEXTN": "EAGLE", "NONE": "none"})


@dataclass(frozen=True, slots=True)
class Row:
    """One field that becomes one fact. `since` is the release it came with, `unset` what null means."""

    fact: str
    key: str
    read: Callable[[object], int | float | str | bool | Bad]
    since: str = ""
    unset: str = ""
    ref: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", f"{PATH} {self.key}")


ROWS: tuple[Row, ...] = (
    Row("start_role", "disaggregation_mode", ROLES),
    Row("context_flag", "context_length", positive, unset="--context-length was not given"),
    Row("admission_limit", "max_req_input_len", positive),
    Row("reported_pool", "max_total_num_tokens", positive),
    Row("page_size", "page_size", positive),
    Row("max_total_tokens_flag", "max_total_tokens", positive, unset="--max-total-tokens was not given"),
    Row("reserved_decode_tokens", "num_reserved_decode_tokens", whole),
    Row("tp_size", "tp_size", positive),
    Row("dp_size", "dp_size", positive),
    Row("pp_size", "pp_size", positive),
    Row("dcp_size", "dcp_size", positive, since="0.5.18 or before"),
    Row("dp_attention", "enable_dp_attention", flag),
    Row("nnodes", "nnodes", positive),
    Row("kv_cache_dtype", "kv_cache_dtype", KV_DTYPE),
    Row(
        "backend",
        "disaggregation_transfer_backend",
        word(
            frozenset({"mooncake", "nixl", "mori", "ascend", "fake"}),
            aliases={"mooncake_tcp": "mooncake"},
            other=True,
        ),
    ),
    Row("checksum", "disaggregation_enable_kv_checksum", flag, since="0.5.21"),
    Row("kv_canary", "kv_canary", word(frozenset({"none", "log", "raise"})), since="0.5.18 or before"),
    Row("kv_canary_sweep", "kv_canary_sweep_interval", whole, since="0.5.18 or before"),
    Row("hierarchical_cache", "enable_hierarchical_cache", flag),
    Row("radix_cache_off", "disable_radix_cache", flag),
    Row("decode_radix_cache", "disaggregation_decode_enable_radix_cache", flag, since="0.5.18 or before"),
    Row("decode_offload", "disaggregation_decode_enable_offload_kvcache", flag, since="0.5.5 or before"),
    Row("host_receive_threshold", "disaggregation_decode_host_receive_threshold", decimal, since="0.5.21"),
    Row(
        "allocation_policy",
        "disaggregation_decode_allocation_policy",
        word(frozenset({"early", "prefill_complete"})),
        since="0.5.22",
    ),
    Row("role_switch", "enable_pd_role_switch", flag, since="0.5.21"),
    Row("optimistic_prefill", "optimistic_prefill_attempts", whole, since="0.5.18 or before"),
    Row("auto_truncate", "allow_auto_truncate", flag),
    Row("metrics_on", "enable_metrics", flag),
    Row("metrics_all_ranks", "enable_metrics_for_all_schedulers", flag),
)

KNOWN_KEYS = frozenset(row.key for row in ROWS) | {"version", "internal_states"}
"""An object that has none of these is not an engine's answer."""


def take(facts: FactSet, row: Row, value: object) -> None:
    """Add the row's fact from `value`, or why it is missing."""
    if value is ABSENT:
        came = f", which came with {row.since}" if row.since else ""
        facts.miss(row.fact, f"{PATH} has no {row.key}{came}")
        return
    if value is None and row.unset:
        facts.miss(row.fact, row.unset)
        return
    made = row.read(value)
    if isinstance(made, Bad):
        facts.miss(row.fact, f"{row.ref}: {made.reason}")
        return
    facts.entries[row.fact] = Fact(made, Grade.CONFIGURED, (Evidence(SOURCE, row.ref, made),))


def read_flags(facts: FactSet, info: Mapping[str, Any], states: list[dict[str, Any]], *, keyed: bool) -> None:
    """Everything that the top level tells by itself. `keyed`: a key was sent with the request."""
    for row in ROWS:
        take(facts, row, info.get(row.key, ABSENT))
    version = read_version(facts, info.get("version", ABSENT))
    _frontend(facts, info, states)
    _checksum_supported(facts, info, version)
    _retraction(facts, info, states)
    _speculative(facts, info)
    _keys_readable(facts, info, keyed=keyed)


def read_version(facts: FactSet, value: object) -> EngineVersion | None:
    """Add the version, if it is one, and its kind; a version is a claim and no more."""
    text = _read.version(value)
    parsed = None if isinstance(text, Bad) else parse_version(text)
    if isinstance(text, Bad) or parsed is None:
        why = text.reason if isinstance(text, Bad) else "not a version"
        facts.miss("version", f"{PATH} version: {why}")
        facts.miss("version_kind", f"{PATH} version: {why}")
        return None
    evidence = (Evidence(SOURCE, f"{PATH} version", text),)
    facts.put("version", Fact(text, Grade.CLAIMED, evidence))
    facts.put("version_kind", Fact(parsed.kind, Grade.CLAIMED, evidence))
    return parsed


def _frontend(facts: FactSet, info: Mapping[str, Any], states: list[dict[str, Any]]) -> None:
    ref = f"{PATH} internal_states[].rust_server_startup_time"
    if any("rust_server_startup_time" in s or "rust_mm_transport" in s for s in states):
        facts.add("frontend", "rust", Grade.CONFIGURED, SOURCE, ref, shown="present")
        return
    take(facts, _FRONTEND, info.get("frontend", ABSENT))


_FRONTEND = Row("frontend", "frontend", word(frozenset({"python", "rust"})), since="0.5.21")


def _checksum_supported(facts: FactSet, info: Mapping[str, Any], version: EngineVersion | None) -> None:
    """By presence of the field; its absence speaks only where the arguments around it are there."""
    key = "disaggregation_enable_kv_checksum"
    ref = f"{PATH} {key}"
    if key in info:
        facts.add("checksum_supported", True, Grade.CONFIGURED, SOURCE, ref, shown="present")
    elif "disaggregation_transfer_backend" not in info:
        facts.miss("checksum_supported", f"{PATH} has neither {key} nor the arguments around it")
    elif version is not None and version.kind != "development" and version.release >= CHECKSUM_SINCE:
        facts.miss("checksum_supported", f"{PATH} has no {key}, though its version should have it")
    else:
        facts.add("checksum_supported", False, Grade.CONFIGURED, SOURCE, ref, shown="absent")


def _retraction(facts: FactSet, info: Mapping[str, Any], states: list[dict[str, Any]]) -> None:
    """Ranks answer the backup in use; the top level may still hold null, the flag as it was not given."""
    key = "disaggregation_decode_retraction_backup"
    inner = {"read": RETRACTION, "unset": "--disaggregation-decode-retraction-backup was not given"}
    if states and states[0].get(key) is not None:
        row = Row("retraction_backup", f"internal_states[0].{key}", **inner)  # type: ignore[arg-type]
        take(facts, row, states[0][key])
        return
    row = Row("retraction_backup", key, since="0.5.18 or before", **inner)  # type: ignore[arg-type]
    take(facts, row, info.get(key, ABSENT))


def _speculative(facts: FactSet, info: Mapping[str, Any]) -> None:
    """The algorithm, its settings, and the tokens that the tokenizer keeps free for it."""
    names = ("speculative", "speculative_settings", "reserved_tokens")
    given = info.get("speculative_algorithm", ABSENT)
    ref = f"{PATH} speculative_algorithm"
    upper = given.upper() if isinstance(given, str) and len(given) <= 32 else given
    algorithm: str | Bad = "none" if given is None else _ALGORITHM(upper)
    if isinstance(algorithm, Bad):
        for name in names:
            facts.miss(name, f"{ref}: {algorithm.reason}")
        return
    facts.add("speculative", algorithm, Grade.CONFIGURED, SOURCE, ref)
    if algorithm == "none":
        facts.add("speculative_settings", (), Grade.CONFIGURED, SOURCE, ref, shown=algorithm)
        facts.add("reserved_tokens", 0, Grade.CONFIGURED, SOURCE, ref, shown=algorithm)
        return
    numbers: list[int | None] = []
    for key in ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"):
        value = info.get(key, ABSENT)
        made = None if value is None else whole(value)
        if isinstance(made, Bad):
            facts.miss("speculative_settings", f"{PATH} {key}: {made.reason}")
            facts.miss("reserved_tokens", f"{PATH} {key}: {made.reason}")
            return
        numbers.append(made)
    texts = ["unset" if n is None else str(n) for n in numbers]
    settings = tuple(f"{n}={t}" for n, t in zip(("steps", "topk", "draft_tokens"), texts, strict=True))
    where = f"{PATH} speculative_num_steps, speculative_eagle_topk, speculative_num_draft_tokens"
    facts.add("speculative_settings", settings, Grade.CONFIGURED, SOURCE, where)
    steps, topk, draft = numbers
    if algorithm not in EAGLE_FAMILY:
        facts.add("reserved_tokens", 0, Grade.CONFIGURED, SOURCE, ref, shown=algorithm)
    elif info.get("speculative_adaptive") not in (None, False):
        facts.miss("reserved_tokens", "adaptive speculation may reserve more than /server_info tells")
    elif steps is None or topk is None or draft is None:
        facts.miss("reserved_tokens", f"{where}: not all are set")
    else:
        facts.add(
            "reserved_tokens", max(topk * steps, draft), Grade.CONFIGURED, SOURCE, where, shown=settings
        )


def _keys_readable(facts: FactSet, info: Mapping[str, Any], *, keyed: bool) -> None:
    """Who learns a key from this answer that they did not hold. Only whether a key is set is looked at.

    An ordinary path wants the API key where one is set, and nothing where only the admin key is. With both,
    who holds the API key reads the admin key.
    """
    found: list[bool] = []
    for key in ("api_key", "admin_api_key"):
        value = info.get(key, ABSENT)
        if value is ABSENT and key == "admin_api_key":
            value = None  # no such key before 0.5.10
        if not (value is None or isinstance(value, str)):
            facts.miss("keys_readable", f"{PATH} {key}: expected a string or null, {describe(value)} came")
            return
        found.append(bool(value))
    api, admin = found
    if (api or admin) and (not keyed or not api):
        who = "anyone"
    else:
        who = "key holders" if api and admin else "nobody"
    shown = tuple(n for n, there in (("api_key set", api), ("admin_api_key set", admin)) if there)
    asked = "with a key" if keyed else "without a key"
    facts.add(
        "keys_readable", who, Grade.CONFIGURED, SOURCE, f"{PATH}, asked {asked}", shown=shown or "no key set"
    )
