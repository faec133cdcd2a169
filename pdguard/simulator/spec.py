"""What a simulated cluster is made of: frozen descriptions, no behaviour.

A spec says how an engine was started and how big its pools came out. Everything an engine answers is
derived from that, per version, in the other modules.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pdguard.simulator.versions import at_least, data_version, hold_default, known_versions

Role = Literal["prefill", "decode", "null"]
RouterKind = Literal["sglang-router", "smg"]

HOLD_VARIABLE = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
HOLD_SECONDS_VARIABLE = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
_TRUE, _FALSE = frozenset({"true", "1", "yes", "y"}), frozenset({"false", "0", "no", "n"})


class Lie(enum.Enum):
    """A way in which an engine fails to answer honestly. Applies to every path of the engine."""

    NONE = "none"
    REFUSED = "connection refused"
    UNAUTHORIZED = "401 whatever the key"
    SERVER_ERROR = "500"
    HTML = "an HTML page instead of JSON"
    ENDLESS = "fewer bytes than announced, then silence"
    TRICKLE = "one byte at a time, forever"
    NUMBERS_AS_STRINGS = "every number as a string"
    NAN = "NaN in place of every number"
    MISSING_KEYS = "every second key missing"
    TRUNCATED_JSON = "JSON cut off in the middle, length consistent"
    WRONG_TYPE = "a JSON list in place of the object, an object in place of a list"
    REDIRECT_LOOP = "a redirect to itself"
    SLOW = "the right answer, after `slow_seconds`"
    HUGE = "`huge_bytes` of valid JSON"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine.

    `context_length` is what the model and the flag resolve to; `context_flag` is what was given on the
    command line (None: not given, and /server_info then answers null). `pools` holds the token capacity
    of each data-parallel rank; a single value is used for every rank. `bootstrap_port` 0 takes a free
    port, None serves no bootstrap endpoint and reports the default 8998. `exposed_env` is answered in
    `internal_states[].env_vars` from 0.5.19 on, and steers the hold; None exposes nothing.
    `overrides` replaces or adds top-level /server_info fields, before the scheduler's own. `seed` sets
    counters to start from, by their full sample name without the engine's own labels, for example
    `decode_deferred_kv_release_total{outcome="timeout"}`.
    `escaped_names`: a client library that writes `sglang_` for `sglang:` to whoever asks for OpenMetrics.
    """

    name: str
    role: Role = "null"
    version: str = "0.5.23"
    context_length: int = 4096
    context_flag: int | None = None
    pools: tuple[int, ...] = (4096,)
    page_size: int = 1
    tp: int = 1
    dp: int = 1
    pp: int = 1
    backend: str = "mooncake"
    bootstrap_port: int | None = None
    num_reserved_decode_tokens: int = 512
    allow_auto_truncate: bool = False
    chat_template: bool = True
    escaped_names: bool = False
    api_key: str | None = None
    admin_api_key: str | None = None
    metrics: bool = True
    exposed_env: Mapping[str, str] | None = None
    live_role: Role | None = None
    waiting_timeout: float = 300.0
    model: str = "/models/tiny"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seed: Mapping[str, float] = field(default_factory=dict)
    token_seconds: float = 0.0
    transfer_seconds: float = 0.0
    lie: Lie = Lie.NONE
    slow_seconds: float = 2.0
    huge_bytes: int = 512 * 1024 * 1024
    bootstrap_registered: bool = True

    def __post_init__(self) -> None:
        if not self.pools or any(pool < 8 for pool in self.pools):
            raise ValueError(
                f"{self.name}: pools needs one capacity of 8 tokens or more per data-parallel rank"
            )
        if len(self.pools) not in (1, self.dp):
            raise ValueError(f"{self.name}: {len(self.pools)} pools for {self.dp} data-parallel ranks")
        if not at_least(self.version, known_versions()[0]):
            raise ValueError(f"{self.name}: version {self.version} is older than anything simulated")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The pool of each data-parallel rank."""
        return self.pools if len(self.pools) == self.dp else self.pools * self.dp

    @property
    def max_req_input_len(self) -> int:
        """The admission limit that /server_info shows: the first rank's, whatever the others hold."""
        return self.limit_of(0)

    def limit_of(self, rank: int) -> int:
        """The admission limit of one data-parallel rank: a prompt of this many tokens is refused."""
        return min(self.context_length - 1, self.ranks[rank] - 1) - 5

    @property
    def role_now(self) -> Role:
        """The role in force, which a role switch may have changed."""
        return self.live_role or self.role

    @property
    def engine_type(self) -> str:
        """The name of the role in metrics."""
        if not at_least(self.version, "0.5.10"):
            return "unified"
        return "unified" if self.role_now == "null" else self.role_now

    @property
    def holds(self) -> bool:
        """Whether a decode keeps the pages of an aborted transfer until they are drained."""
        if self.backend not in ("mooncake", "nixl", "mori") or not at_least(self.version, "0.5.19"):
            return False
        if self.backend == "mori" and data_version(self.version) == "0.5.21":
            return False
        text = (self.exposed_env or {}).get(HOLD_VARIABLE, "").lower()
        if text in _TRUE:
            return True
        return False if text in _FALSE else hold_default(self.version)

    @property
    def hold_seconds(self) -> float:
        """The longest time that pages are held."""
        try:
            return float((self.exposed_env or {}).get(HOLD_SECONDS_VARIABLE, "30"))
        except ValueError:
            return 30.0


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """One router in front of named engines. `retry_seconds` is the first pause between two tries."""

    name: str
    kind: RouterKind = "sglang-router"
    version: str = "0.3.2"
    engines: tuple[str, ...] = ()
    tries: int = 5
    retry_seconds: float = 0.05

    @property
    def pairs_failures(self) -> bool:
        """Whether a failed prefill half drops the decode half at once."""
        return self.kind == "smg" and at_least(self.version, "1.12.0")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Engines and routers that run together."""

    name: str = "simulated"
    engines: tuple[EngineSpec, ...] = ()
    routers: tuple[RouterSpec, ...] = ()

    def __post_init__(self) -> None:
        names = [engine.name for engine in self.engines] + [router.name for router in self.routers]
        twice = {name for name, count in Counter(names).items() if count > 1}
        if twice:
            raise ValueError(f"names used twice: {', '.join(sorted(twice))}")
        known = {engine.name for engine in self.engines}
        for router in self.routers:
            missing = set(router.engines) - known
            if missing:
                raise ValueError(f"{router.name}: no such engine: {', '.join(sorted(missing))}")

    def engine(self, name: str) -> EngineSpec:
        """The engine of that name."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)
