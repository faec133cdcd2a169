"""Names that a node may send back: an allow-list, so that no secret ever leaves the node.

Both halves use it: the node keeps only what is named here, the control side types only what is named here.
"""

from __future__ import annotations

HOLD = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
T_HOLD = HOLD + "_TIMEOUT"
BOOTSTRAP_TIMEOUT = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
WAITING_TIMEOUT = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
BATCH_CAP = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
MORI_TIMEOUT = "SGLANG_MORI_TRANSFER_TIMEOUT_MS"
TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
RUST_SERVER = "SGLANG_RUST_SERVER"
MC_TIMEOUT = "MC_TRANSFER_TIMEOUT"
OLD_FAILURE_PROB = "DISAGGREGATION_TEST_FAILURE_PROB"

SETTINGS = (
    HOLD,
    T_HOLD,
    BOOTSTRAP_TIMEOUT,
    WAITING_TIMEOUT,
    BATCH_CAP,
    MORI_TIMEOUT,
    TREE_CORE,
    RUST_SERVER,
)
"""Variables of the engine that set something this tool judges."""

INJECTIONS = (
    "SGLANG_TEST_DISAGG_FAILURE_PROB",
    "SGLANG_TEST_DISAGG_KV_CHECKSUM_MISMATCH_PROB",
    "SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB",
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_USED_PROB",
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_UNUSED_CACHE_PROB",
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_POST_FORWARD_PROB",
    "SGLANG_KV_CANARY_PERTURB_NEXT_TOKEN_SWAP_PROB",
    "SGLANG_TEST_STUCK_DETOKENIZER",
    "SGLANG_TEST_STUCK_DP_CONTROLLER",
    "SGLANG_TEST_STUCK_SCHEDULER_INIT",
    "SGLANG_TEST_STUCK_TOKENIZER",
    "SGLANG_TEST_CRASH_AFTER_STREAM_OUTPUTS",
    "SGLANG_TEST_RETRACT",
    "SGLANG_TEST_MAMBA_LAZY_ALLOC_FAIL",
    "SGLANG_TEST_FORCE_OPTIMISTIC_PREFILL_RETRY_PROB",
    "SGLANG_TEST_SCRIPTED_RUNTIME",
    "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY",
    "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE",
    "SGLANG_TEST_HICACHE_H2D_DELAY_CYCLES",
)
"""Variables that make the engine fail, stall or corrupt on purpose."""


def twin(name: str) -> str:
    """The legacy `SGL_` spelling of an `SGLANG_` name."""
    return "SGL_" + name[len("SGLANG_") :]


ENV_NAMES = frozenset(SETTINGS + INJECTIONS + (MC_TIMEOUT, OLD_FAILURE_PROB)) | frozenset(
    twin(name) for name in SETTINGS + INJECTIONS
)
"""Variables whose value a node may send."""

_DTYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16", "fp4_e2m1")
_SPECULATIVE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
_BALANCE = (
    "auto",
    "round_robin",
    "follow_bootstrap_room",
    "total_requests",
    "total_tokens",
    "shortest_queue",
    "minimum_tokens",
)

FLAG_ROWS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    # (field, int|float|bool|word, option strings, words); a field in OLD_FIELDS exists in every version read
    ("port", "int", ("--port",), ()),
    ("context_length", "int", ("--context-length",), ()),
    ("max_total_tokens", "int", ("--max-total-tokens",), ()),
    ("mem_fraction_static", "float", ("--mem-fraction-static",), ()),
    ("chunked_prefill_size", "int", ("--chunked-prefill-size",), ()),
    ("max_prefill_tokens", "int", ("--max-prefill-tokens",), ()),
    ("max_running_requests", "int", ("--max-running-requests",), ()),
    ("page_size", "int", ("--page-size",), ()),
    ("allow_auto_truncate", "bool", ("--allow-auto-truncate",), ()),
    ("tp_size", "int", ("--tp-size", "--tensor-parallel-size"), ()),
    ("dp_size", "int", ("--dp-size", "--data-parallel-size"), ()),
    ("pp_size", "int", ("--pp-size", "--pipeline-parallel-size"), ()),
    ("dcp_size", "int", ("--dcp-size", "--decode-context-parallel-size"), ()),
    ("attn_dp_size", "int", ("--attn-dp-size", "--attention-data-parallel-size"), ()),
    ("attn_cp_size", "int", ("--attn-cp-size", "--attention-context-parallel-size"), ()),
    ("nnodes", "int", ("--nnodes",), ()),
    ("node_rank", "int", ("--node-rank",), ()),
    ("enable_dp_attention", "bool", ("--enable-dp-attention",), ()),
    ("load_balance_method", "word", ("--load-balance-method",), _BALANCE),
    ("tokenizer_worker_num", "int", ("--tokenizer-worker-num",), ()),
    ("kv_cache_dtype", "word", ("--kv-cache-dtype",), _DTYPES),
    ("disable_radix_cache", "bool", ("--disable-radix-cache",), ()),
    ("enable_hierarchical_cache", "bool", ("--enable-hierarchical-cache",), ()),
    ("enable_hisparse", "bool", ("--enable-hisparse",), ()),
    ("hicache_ratio", "float", ("--hicache-ratio",), ()),
    ("hicache_size", "int", ("--hicache-size",), ()),
    ("disaggregation_mode", "word", ("--disaggregation-mode",), ("null", "prefill", "decode")),
    (
        "disaggregation_transfer_backend",
        "word",
        ("--disaggregation-transfer-backend",),
        ("mooncake", "nixl", "mori", "ascend", "fake", "mooncake_tcp"),
    ),
    ("disaggregation_bootstrap_port", "int", ("--disaggregation-bootstrap-port",), ()),
    ("disaggregation_enable_kv_checksum", "bool", ("--disaggregation-enable-kv-checksum",), ()),
    ("disaggregation_decode_enable_radix_cache", "bool", ("--disaggregation-decode-enable-radix-cache",), ()),
    (
        "disaggregation_decode_enable_offload_kvcache",
        "bool",
        ("--disaggregation-decode-enable-offload-kvcache",),
        (),
    ),
    (
        "disaggregation_decode_retraction_backup",
        "word",
        ("--disaggregation-decode-retraction-backup",),
        ("cpu_tensor", "host_pool", "none"),
    ),
    (
        "disaggregation_decode_host_receive_threshold",
        "float",
        ("--disaggregation-decode-host-receive-threshold",),
        (),
    ),
    (
        "disaggregation_decode_allocation_policy",
        "word",
        ("--disaggregation-decode-allocation-policy",),
        ("early", "prefill_complete"),
    ),
    ("disaggregation_decode_extra_slots", "int", ("--disaggregation-decode-extra-slots",), ()),
    ("num_reserved_decode_tokens", "int", ("--num-reserved-decode-tokens",), ()),
    ("enable_pd_role_switch", "bool", ("--enable-pd-role-switch",), ()),
    ("optimistic_prefill_attempts", "int", ("--optimistic-prefill-attempts",), ()),
    ("kv_canary", "word", ("--kv-canary",), ("none", "log", "raise")),
    ("kv_canary_real_data", "word", ("--kv-canary-real-data",), ("none", "partial", "all")),
    ("kv_canary_sweep_interval", "int", ("--kv-canary-sweep-interval",), ()),
    ("speculative_algorithm", "word", ("--speculative-algorithm",), _SPECULATIVE),
    ("speculative_num_steps", "int", ("--speculative-num-steps",), ()),
    ("speculative_eagle_topk", "int", ("--speculative-eagle-topk",), ()),
    ("speculative_num_draft_tokens", "int", ("--speculative-num-draft-tokens",), ()),
    ("enable_metrics", "bool", ("--enable-metrics",), ()),
    ("enable_metrics_for_all_schedulers", "bool", ("--enable-metrics-for-all-schedulers",), ()),
)

OPTIONS: dict[str, str] = {option: row[0] for row in FLAG_ROWS for option in row[2]}
"""Field by option string."""

WORDS = frozenset(word for row in FLAG_ROWS for word in row[3])
"""Every value that is not a number and may be shown."""

CONFIG = "--config"
