"""The one table of figures that rules, dashboard, live table and docs/metrics.md use.

An expression is PromQL with three kinds of placeholder: `$selector` (label matchers that narrow it to one
cluster, each after a comma), `$name` for a number of Limits, and `@name@` for another entry of the table.

Four traps of these series are dealt with here and nowhere else. Some counters come once a tensor rank, some
from the first rank only, so every count takes the largest of the ranks before it adds up data ranks and
outcomes. A counter has no series before its first event, and `increase` does not see the jump from nothing
to the first value, so that value is added where the engine itself was scraped before. A share of nothing is
no share: it has no value. A queue gauge may be absent on an engine that has served nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from string import Template

from pdguard.outcomes.series import both_names

DECODE = 'engine_type=~"decode|dynamic"$selector'
PREFILL = 'engine_type=~"prefill|dynamic"$selector'
ANY = 'engine_type=~"prefill|decode|dynamic"$selector'
DECODE_FRONT = 'engine_type="decode"$selector'
"""The tokenizer's own counters keep their role where schedulers say `dynamic`."""

RELEASES = "sglang:decode_deferred_kv_release_total"
HOLD_SECONDS = "sglang:decode_deferred_kv_release_seconds"
POOL = "sglang:max_total_num_tokens"

DEFAULT_T_HOLD = 30.0
"""Seconds; the engine's own default since 0.5.19."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers in thresholds. `timeout_ratio` and `min_holds` are those of policy."""

    t_hold: float = DEFAULT_T_HOLD
    timeout_ratio: float = 0.05
    min_holds: int = 20
    held_share: float = 0.2
    """Share of a decode pool that held pages may take."""
    held_now: int = 8
    """Requests held at the same time, for minutes."""
    failures: int = 5
    failure_share: float = 0.05
    aborts: float = 0.2
    """Aborts per second below which there is no spike."""
    spike: float = 4.0
    """How many times the rate of the hour before."""
    unheld_aborts: int = 20
    """Aborts in an hour after which at least one hold is expected."""

    def words(self) -> dict[str, str]:
        """The numbers as they are written into expressions and sentences."""
        return {name: f"{value:g}" for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Definition:
    """One figure: `record` is the recording rule's name, `by` the labels that are left."""

    name: str
    record: str
    title: str
    meaning: str
    unit: str
    by: tuple[str, ...]
    group: str
    expression: str


def _counted(series: str, match: str, window: str, by: str, ranks: str = "max") -> str:
    """Events in the window by these labels, with the first value of a series that is new in it."""
    grown = f"{ranks} by ({by}) (increase({series}{{{match}}}[{window}]))"
    fresh = (
        f"{ranks} by ({by}) ((min_over_time({series}{{{match}}}[{window}])"
        f" unless {series}{{{match}}} offset {window})"
        f" and on (instance) {POOL}{{{ANY}}} offset {window})"
    )
    return f"({grown} + {fresh}) or {grown} or {fresh}"


def _events(series: str, match: str, window: str, by: str, apart: str = "dp_rank") -> str:
    """Requests by these labels: the largest tensor rank of each of `apart`, then all of them."""
    return f"sum by ({by}) ({_counted(series, match, window, f'{by}, {apart}')})"


def front_events(series: str, match: str, window: str, by: str) -> str:
    """Events that the tokenizer counts, which has no ranks."""
    return _counted(series, match, window, by, "sum")


def _gauge(name: str, match: str) -> str:
    return f"sum by (instance) (max by (instance, dp_rank) (sglang:{name}{{{match}}}))"


def _tail(share: str) -> str:
    rates = f"sum by (instance, le) (rate({HOLD_SECONDS}_bucket{{{DECODE}}}[15m]))"
    return f"histogram_quantile({share}, {rates})"


def _mean(total: str, count: str, match: str, window: str) -> str:
    """A mean that has no value where nothing was counted."""
    above = f"sum by (instance) (rate({total}{{{match}}}[{window}]))"
    return f"{above} / (sum by (instance) (rate({count}{{{match}}}[{window}])) > 0)"


_OUTCOME, _ROLE, _ENGINE = ("instance", "outcome"), ("instance", "engine_type"), ("instance",)
_BY_OUTCOME, _BY_ROLE = "instance, outcome", "instance, engine_type"
_ABORTED, _ANSWERED = "sglang:num_aborted_requests_total", "sglang:num_requests_total"

_ROWS: tuple[tuple[str, str, str, str, str, tuple[str, ...], str], ...] = (
    # name, record, title, meaning, unit, by, expression
    (
        *("holds", "decode_holds:increase15m", "Holds by outcome"),
        "Holds that ended within 15 minutes, one a request, by outcome: drained, timeout or error.",
        *("requests", _OUTCOME, _events(RELEASES, DECODE, "15m", _BY_OUTCOME)),
    ),
    (
        *("hold_rate", "decode_holds:rate5m", "Holds per second by outcome"),
        "Holds that ended per second, over 5 minutes.",
        *("per second", _OUTCOME, f"({_events(RELEASES, DECODE, '5m', _BY_OUTCOME)}) / 300"),
    ),
    (
        *("unproven", "decode_holds_unproven:increase15m", "Holds that ended without proof"),
        "Holds within 15 minutes that ended by the clock or by an error.",
        *("requests", _ENGINE),
        _events(RELEASES, f'outcome=~"timeout|error",{DECODE}', "15m", "instance", "dp_rank, outcome"),
    ),
    (
        *("timeout_ratio", "decode_holds_unproven:ratio15m", "Share of holds without proof"),
        "Share of the holds of 15 minutes that ended by the clock or by an error; no value without holds.",
        *("share", _ENGINE),
        "(sum by (instance) (@unproven@) or 0 * sum by (instance) (@holds@))"
        " / on (instance) (sum by (instance) (@holds@) > 0)",
    ),
    (
        *("held_now", "decode_held:sum", "Requests held now"),
        "Requests that are gone and whose pages decode still keeps.",
        *("requests", _ENGINE, _gauge("num_decode_deferred_kv_release_reqs", DECODE)),
    ),
    (
        *("hold_mean", "decode_hold_seconds:mean15m", "Mean hold time"),
        "Mean seconds that a hold lasted, over 15 minutes.",
        *("seconds", _ENGINE, _mean(f"{HOLD_SECONDS}_sum", f"{HOLD_SECONDS}_count", DECODE, "15m")),
    ),
    (
        *("hold_p95", "decode_hold_seconds:p95_15m", "95th percentile of hold time"),
        "19 of 20 holds lasted at most this long. Buckets end at 60 s: 60 means 60 or more.",
        *("seconds", _ENGINE, _tail("0.95")),
    ),
    (
        *("hold_p99", "decode_hold_seconds:p99_15m", "99th percentile of hold time"),
        "99 of 100 holds lasted at most this long. Buckets end at 60 s: 60 means 60 or more.",
        *("seconds", _ENGINE, _tail("0.99")),
    ),
    (
        *("aborts", "aborts:rate5m", "Aborts per second"),
        "Abort messages of the engine's front per second, over 5 minutes: clients that left.",
        *("per second", _ROLE, f"({front_events(_ABORTED, ANY, '5m', _BY_ROLE)}) / 300"),
    ),
    (
        *("aborts_before", "aborts_before:rate1h", "Aborts per second in the hour before"),
        "The same over the hour that ended 5 minutes ago.",
        *("per second", _ROLE, f"sum by ({_BY_ROLE}) (rate({_ABORTED}{{{ANY}}}[1h] offset 5m))"),
    ),
    (
        *("requests", "requests:increase15m", "Requests"),
        "Requests within 15 minutes.",
        *("requests", _ROLE, front_events(_ANSWERED, ANY, "15m", _BY_ROLE)),
    ),
    (
        *("failed_transfers", "failed_transfers:increase15m", "Failed transfers"),
        "Requests within 15 minutes whose KV transfer failed. A client that leaves in mid-transfer counts.",
        *("requests", _ROLE, _events("sglang:num_transfer_failed_reqs_total", ANY, "15m", _BY_ROLE)),
    ),
    (
        *("failed_bootstraps", "failed_bootstraps:increase15m", "Failed bootstraps"),
        "Requests within 15 minutes whose two halves did not find each other.",
        *("requests", _ROLE, _events("sglang:num_bootstrap_failed_reqs_total", ANY, "15m", _BY_ROLE)),
    ),
    (
        *("prefill_bootstrap", "prefill_bootstrap_queue:sum", "Prefill bootstrap queue"),
        "Requests on prefill that wait for decode's half.",
        *("requests", _ENGINE, _gauge("num_prefill_bootstrap_queue_reqs", PREFILL)),
    ),
    (
        *("prefill_inflight", "prefill_inflight_queue:sum", "Prefill in-flight queue"),
        "Requests on prefill whose KV is being sent.",
        *("requests", _ENGINE, _gauge("num_prefill_inflight_queue_reqs", PREFILL)),
    ),
    (
        *("decode_prealloc", "decode_prealloc_queue:sum", "Decode preallocation queue"),
        "Requests on decode that wait for pages.",
        *("requests", _ENGINE, _gauge("num_decode_prealloc_queue_reqs", DECODE)),
    ),
    (
        *("decode_transfer", "decode_transfer_queue:sum", "Decode transfer queue"),
        "Requests on decode that have pages and wait for KV.",
        *("requests", _ENGINE, _gauge("num_decode_transfer_queue_reqs", DECODE)),
    ),
    (
        *("pool", "pool_tokens:sum", "Pool"),
        "Tokens that the engine's pools hold, all data ranks together.",
        *("tokens", _ENGINE, f"sum by (instance) (min by (instance, dp_rank) ({POOL}{{{ANY}}}))"),
    ),
    (
        *("prompt_tokens", "decode_prompt_tokens:mean1h", "Mean prompt"),
        "Mean tokens of a prompt on decode over an hour. Long prompts abort more than short ones.",
        *("tokens", _ENGINE, _mean("sglang:prompt_tokens_total", _ANSWERED, DECODE_FRONT, "1h")),
    ),
    (
        *("held_share", "decode_held_capacity:ratio5m", "Share of the pool that holds may take"),
        "Holds per second times T_hold ($t_hold s) times the mean prompt, against decode's pool.",
        *("share", _ENGINE),
        "sum by (instance) (@hold_rate@) * $t_hold * on (instance) @prompt_tokens@ / on (instance) @pool@",
    ),
    (
        *("pool_shortfall", "pool_below_context:max", "Context beyond the pool"),
        "Tokens by which the context exceeds the pool of a rank; no value where the pool suffices.",
        *("tokens", ("instance", "dp_rank")),
        "max by (instance, dp_rank) ("
        f"max by (instance, dp_rank, pp_rank, tp_rank) (sglang:context_len{{{ANY}}})"
        f" - min by (instance, dp_rank, pp_rank, tp_rank) ({POOL}{{{ANY}}})) > 0",
    ),
)

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Holds": ("holds", "hold_rate", "unproven", "timeout_ratio", "held_now"),
    "Hold times": ("hold_mean", "hold_p95", "hold_p99"),
    "Requests and aborts": ("aborts", "aborts_before", "requests"),
    "Failures": ("failed_transfers", "failed_bootstraps"),
    "Queues": ("prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer"),
    "Capacity": ("pool", "prompt_tokens", "held_share", "pool_shortfall"),
}
"""The names of the figures under the title that docs and dashboard give them."""

_GROUP_OF = {name: title for title, names in GROUPS.items() for name in names}
DEFINITIONS: tuple[Definition, ...] = tuple(
    Definition(name, f"pdguard:{record}", title, meaning, unit, by, _GROUP_OF[name], expression)
    for name, record, title, meaning, unit, by, expression in _ROWS
)
"""Every figure, in the order of docs and dashboard; an entry comes after those that it reads."""

_BY_NAME: Mapping[str, Definition] = {one.name: one for one in DEFINITIONS}
_REFERENCE = re.compile(r"@(\w+)@")


_FAMILY = re.compile(r"(sglang:\w+)\{")


def _under_both_names(match: re.Match[str]) -> str:
    return f'{{__name__=~"{"|".join(both_names(match.group(1)))}",'


def matchers(selector: Mapping[str, str]) -> str:
    """`selector` as label matchers, each after a comma, quoted for PromQL."""
    return "".join(f",{name}={quoted(value)}" for name, value in sorted(selector.items()))


def quoted(value: str) -> str:
    """`value` as a PromQL string."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def expand(expression: str, limits: Limits, selector: str = "", *, recorded: bool = False) -> str:
    """PromQL of an expression of this table.

    `selector` is what `matchers` gives, or any other text of that shape. With `recorded`, other figures are
    read from their recording rules, else they are written out.
    """

    def other(match: re.Match[str]) -> str:
        found = _BY_NAME[match.group(1)]
        if recorded:
            return f"{found.record}{{$inner}}" if selector else found.record
        return f"({_REFERENCE.sub(other, found.expression)})"

    text = _FAMILY.sub(_under_both_names, _REFERENCE.sub(other, expression))
    return Template(text).substitute(limits.words(), selector=selector, inner=selector.removeprefix(","))
