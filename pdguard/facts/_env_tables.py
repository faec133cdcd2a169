"""Environment variables of the engine by version, from every examined package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdguard.facts.versions import OLDEST, Release
from pdguard.node import names

TWIN_RULE: Release = (0, 5, 5)
"""From here on, an `SGL_X` variable is copied over `SGLANG_X` when the engine starts."""

HOLD_CODE: Release = (0, 5, 19)
HOLD_ON_BY_DEFAULT: Release = (0, 5, 21)
OLD_FAILURE_PROB_GONE: Release = (0, 5, 13)
"""From here on the old name is only a fall-back after an error that its successor's reader never raises."""

MOONCAKE_SECONDS = 30
MOONCAKE_FLOOR = 5


@dataclass(frozen=True, slots=True)
class Variable:
    """How one variable is read: bool, int, float or text; `since` is the first version that has it."""

    kind: str
    since: Release
    default: Mapping[Release, bool | int | float | str]

    def default_at(self, release: Release) -> bool | int | float | str:
        """The default of the last change at or before `release`."""
        return self.default[max(r for r in self.default if r <= release)]


SETTINGS: dict[str, Variable] = {
    names.HOLD: Variable("bool", HOLD_CODE, {OLDEST: False, HOLD_ON_BY_DEFAULT: True}),
    names.T_HOLD: Variable("float", HOLD_CODE, {OLDEST: 30.0}),
    names.BOOTSTRAP_TIMEOUT: Variable("int", OLDEST, {OLDEST: 300}),
    names.WAITING_TIMEOUT: Variable("int", OLDEST, {OLDEST: 300}),
    names.BATCH_CAP: Variable("int", (0, 5, 20), {OLDEST: 0}),
    names.MORI_TIMEOUT: Variable("int", (0, 5, 13), {OLDEST: 0}),
    names.TREE_CORE: Variable("text", (0, 5, 17), {OLDEST: "python", (0, 5, 21): "rust"}),
    names.RUST_SERVER: Variable("bool", (0, 5, 17), {OLDEST: False}),
}

_PROB = {OLDEST: 0.0}
INJECTIONS: dict[str, Variable] = {
    "SGLANG_TEST_DISAGG_FAILURE_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_TEST_DISAGG_KV_CHECKSUM_MISMATCH_PROB": Variable("float", (0, 5, 23), _PROB),
    "SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_USED_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_UNUSED_CACHE_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_POST_FORWARD_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_KV_CANARY_PERTURB_NEXT_TOKEN_SWAP_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_TEST_STUCK_DETOKENIZER": Variable("float", (0, 5, 10), _PROB),
    "SGLANG_TEST_STUCK_DP_CONTROLLER": Variable("float", (0, 5, 10), _PROB),
    "SGLANG_TEST_STUCK_SCHEDULER_INIT": Variable("float", (0, 5, 10), _PROB),
    "SGLANG_TEST_STUCK_TOKENIZER": Variable("float", (0, 5, 10), _PROB),
    "SGLANG_TEST_CRASH_AFTER_STREAM_OUTPUTS": Variable("int", (0, 5, 10), {OLDEST: 0}),
    "SGLANG_TEST_RETRACT": Variable("bool", OLDEST, {OLDEST: False}),
    "SGLANG_TEST_MAMBA_LAZY_ALLOC_FAIL": Variable("bool", (0, 5, 13), {OLDEST: False}),
    "SGLANG_TEST_FORCE_OPTIMISTIC_PREFILL_RETRY_PROB": Variable("float", (0, 5, 13), _PROB),
    "SGLANG_TEST_SCRIPTED_RUNTIME": Variable("bool", (0, 5, 13), {OLDEST: False}),
    "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": Variable("float", (0, 5, 23), _PROB),
    "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": Variable("float", (0, 5, 23), _PROB),
    "SGLANG_TEST_HICACHE_H2D_DELAY_CYCLES": Variable("int", (0, 5, 23), {OLDEST: 0}),
}

ALL: dict[str, Variable] = {**SETTINGS, **INJECTIONS}

POINTS: tuple[Release, ...] = tuple(
    sorted(
        {OLDEST, TWIN_RULE, OLD_FAILURE_PROB_GONE}
        | {variable.since for variable in ALL.values()}
        | {release for variable in ALL.values() for release in variable.default}
    )
)
"""Releases at which the reading of any variable may change."""

SAYS_ON = frozenset(("1", "true", "yes", "y", "on", "enable", "enabled", "t", "2"))
SAYS_OFF = frozenset(("0", "false", "no", "n", "off", "disable", "disabled", "f", "none", "null", ""))
