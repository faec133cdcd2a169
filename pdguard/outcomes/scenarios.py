"""Made-up histories of series in which each alert must fire, or must stay silent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pdguard.outcomes.definitions import POOL, RELEASES, Limits

D, P = "d0:30000", "p0:30000"
ABORTED = "sglang:num_aborted_requests_total"
REQUESTS = "sglang:num_requests_total"
FAILED = "sglang:num_transfer_failed_reqs_total"
UNPAIRED = "sglang:num_bootstrap_failed_reqs_total"
HELD = "sglang:num_decode_deferred_kv_release_reqs"
WAITING = "sglang:num_decode_transfer_queue_reqs"
CONTEXT = "sglang:context_len"


@dataclass(frozen=True, slots=True)
class Series:
    """One series; `values` in the notation of promtool, one a minute."""

    name: str
    labels: Mapping[str, str]
    values: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was scraped, and what the alert does at minute `at`.

    `fires` has the labels beyond severity and the text of the value; without it the alert is silent.
    `figures` are recorded series, with labels and value, that must be there at that minute.
    """

    title: str
    alert: str
    at: int
    series: tuple[Series, ...]
    fires: tuple[Mapping[str, str], str] | None = None
    figures: tuple[tuple[str, Mapping[str, str], float], ...] = field(default=())


def _decode(name: str, values: str, **labels: str) -> Series:
    return Series(name, {"instance": D, "engine_type": "decode", **labels}, values)


def _ranks(name: str, values: str, **labels: str) -> tuple[Series, ...]:
    """The same series from both tensor ranks, as engines with tp_size 2 give it."""
    return tuple(_decode(name, values, tp_rank=rank, **labels) for rank in ("0", "1"))


_ALIVE = _ranks(POOL, "100000x120")
_DECODE = {"instance": D, "engine_type": "decode"}


def scenarios(limits: Limits) -> tuple[Scenario, ...]:
    """Every scenario, with histories that suit the limits."""
    return (
        *_ratio(limits),
        *_errors(),
        *_held(limits),
        *_capacity(limits),
        *_failures(limits, "PdguardTransferFailures", FAILED),
        *_failures(limits, "PdguardBootstrapFailures", UNPAIRED),
        *_aborts(limits),
        *_stuck(),
        *_pool(),
        *_missing(limits),
    )


def _ratio(limits: Limits) -> tuple[Scenario, ...]:
    name = "PdguardHoldTimeoutRatio"
    each = math.ceil(limits.min_holds / 10)
    # Enough for the limit only if the two tensor ranks were both counted.
    few = f"0+{limits.min_holds * 0.75 / 15:g}x60"
    burst = limits.min_holds + 1
    healthy = _decode(RELEASES, f"0+{each}x60", outcome="drained", tp_rank="0")
    return (
        Scenario(
            "every hold ends by the clock, two tensor ranks",
            name,
            30,
            (*_ALIVE, *_ranks(RELEASES, f"0+{each}x60", outcome="timeout")),
            ({"instance": D}, "100%"),
            (
                ("pdguard:decode_holds:increase15m", {"instance": D, "outcome": "timeout"}, 15.0 * each),
                ("pdguard:decode_holds_unproven:ratio15m", {"instance": D}, 1.0),
            ),
        ),
        Scenario(
            "two data ranks are two engines' worth of holds",
            name,
            30,
            tuple(
                _decode(RELEASES, f"0+{each}x60", outcome="error", tp_rank=rank, dp_rank=rank)
                for rank in ("0", "1")
            ),
            ({"instance": D}, "100%"),
            (("pdguard:decode_holds_unproven:increase15m", {"instance": D}, 30.0 * each),),
        ),
        Scenario(
            "the first holds ever are a burst of timeouts",
            name,
            28,
            (*_ALIVE, *_ranks(RELEASES, f"_x20 {burst}x40", outcome="timeout")),
            ({"instance": D}, "100%"),
            (("pdguard:decode_holds:increase15m", {"instance": D, "outcome": "timeout"}, float(burst)),),
        ),
        Scenario(
            "an engine with old timeouts is scraped for the first time",
            name,
            28,
            (
                *_ranks(POOL, "_x20 100000x40"),
                *_ranks(RELEASES, f"_x20 {burst}x40", outcome="timeout"),
            ),
        ),
        Scenario(
            "every hold drains",
            name,
            30,
            (*_ALIVE, healthy),
            None,
            (("pdguard:decode_holds_unproven:ratio15m", {"instance": D}, 0.0),),
        ),
        Scenario("no hold at all", name, 30, (*_ALIVE, _unmoved())),
        Scenario("no series yet", name, 30, _ALIVE),
        Scenario(
            "too few holds, though two ranks count them",
            name,
            30,
            (*_ALIVE, *_ranks(RELEASES, few, outcome="timeout")),
        ),
        Scenario(
            "timeouts before and after a restart",
            name,
            30,
            (*_ALIVE, *_ranks(RELEASES, f"100+{each}x20 0+{each}x40", outcome="timeout")),
            ({"instance": D}, "100%"),
            (("pdguard:decode_holds_unproven:increase15m", {"instance": D}, 14.0 * each),),
        ),
        Scenario(
            "a restart takes old timeouts away",
            name,
            30,
            (*_ALIVE, healthy, _decode(RELEASES, "500x22 0x40", outcome="timeout", tp_rank="0")),
        ),
    )


def _unmoved() -> Series:
    """A counter that has not moved for an hour."""
    return _decode(RELEASES, "7x60", outcome="timeout", tp_rank="0")


def _errors() -> tuple[Scenario, ...]:
    name = "PdguardHoldReleaseErrors"
    return (
        Scenario(
            "the first error",
            name,
            25,
            (*_ALIVE, _decode(RELEASES, "_x20 1x40", outcome="error", tp_rank="0")),
            ({"instance": D, "outcome": "error"}, "1"),
        ),
        Scenario(
            "errors of yesterday, and timeouts now",
            name,
            30,
            (
                *_ALIVE,
                _decode(RELEASES, "3x60", outcome="error", tp_rank="0"),
                _decode(RELEASES, "0+9x60", outcome="timeout", tp_rank="0"),
            ),
        ),
    )


def _held(limits: Limits) -> tuple[Scenario, ...]:
    name = "PdguardHoldsGrow"
    many = limits.held_now + 4
    return (
        Scenario(
            "holds do not end",
            name,
            30,
            (_decode(HELD, f"{many}x60", tp_rank="0"),),
            ({"instance": D}, f"{many}"),
        ),
        Scenario(
            "an abort storm that drains", name, 30, (_decode(HELD, f"0x18 {many}x5 0x40", tp_rank="0"),)
        ),
        Scenario("few, told by two ranks", name, 30, _ranks(HELD, f"{limits.held_now - 1}x60")),
    )


def _capacity(limits: Limits) -> tuple[Scenario, ...]:
    name = "PdguardHeldCapacity"

    def story(title: str, factor: float, *, fires: bool) -> Scenario:
        share = limits.held_share * factor
        # One hold a second, prompts of 1,000 tokens on average.
        pool = f"{limits.t_hold * 1000 / share:.0f}"
        series = (
            *_ranks(POOL, f"{pool}x120"),
            *_ranks(RELEASES, "0+60x120", outcome="drained"),
            _decode(REQUESTS, "0+120x120", is_streaming="false"),
            _decode("sglang:prompt_tokens_total", "0+120000x120", is_streaming="false"),
        )
        return Scenario(title, name, 90, series, ({"instance": D}, f"{share * 100:.4g}%") if fires else None)

    return (
        story("holds outgrow the pool", 1.5, fires=True),
        story("holds fit, though two ranks count them", 0.75, fires=False),
        Scenario(
            "no request in the last hour",
            name,
            90,
            (*_ALIVE, _decode(REQUESTS, "5x120"), _decode("sglang:prompt_tokens_total", "500x120")),
        ),
    )


def _failures(limits: Limits, name: str, series: str) -> tuple[Scenario, ...]:
    each = math.ceil(limits.failures / 10)
    few = f"0+{limits.failures * 0.75 / 15:g}x60"
    plenty = math.ceil(each / limits.failure_share * 2)
    failing = _ranks(series, f"0+{each}x60")
    return (
        Scenario(
            "many fail and nothing is answered",
            name,
            30,
            (*_ALIVE, *failing),
            (_DECODE, f"{15 * each}"),
        ),
        Scenario(
            "half of the requests fail",
            name,
            30,
            (*_ALIVE, *failing, _decode(REQUESTS, f"0+{2 * each}x60")),
            (_DECODE, f"{15 * each}"),
        ),
        Scenario("few among many", name, 30, (*_ALIVE, *failing, _decode(REQUESTS, f"0+{plenty}x60"))),
        Scenario("too few, though two ranks count them", name, 30, (*_ALIVE, *_ranks(series, few))),
        Scenario("an engine starts again", name, 30, (*_ALIVE, *_ranks(series, "900x22 0x40"))),
    )


def _aborts(limits: Limits) -> tuple[Scenario, ...]:
    name = "PdguardAbortsSpike"
    each = math.ceil(limits.aborts * 60 * 5)
    shown = f"{each / 60:.2f}"
    return (
        Scenario(
            "after a quiet hour",
            name,
            70,
            (*_ALIVE, _decode(ABORTED, f"0x60 {each}+{each}x20")),
            (_DECODE, shown),
        ),
        Scenario(
            "the first aborts ever",
            name,
            66,
            (*_ALIVE, _decode(ABORTED, f"_x60 {each}+{each}x20")),
            (_DECODE, shown),
        ),
        Scenario("always as many", name, 100, (*_ALIVE, _decode(ABORTED, f"0+{each}x120"))),
        Scenario("an engine starts again", name, 70, (*_ALIVE, _decode(ABORTED, "99999x62 0x20"))),
    )


def _stuck() -> tuple[Scenario, ...]:
    name = "PdguardDecodeTransferQueueStuck"
    queue = _decode(WAITING, "3x60", tp_rank="0")
    return (
        Scenario("nothing comes", name, 30, (*_ALIVE, queue), ({"instance": D}, "3")),
        Scenario(
            "nothing comes any more",
            name,
            40,
            (*_ALIVE, queue, _decode(REQUESTS, "0+5x10 50x50")),
            ({"instance": D}, "3"),
        ),
        Scenario("a busy engine", name, 30, (*_ALIVE, queue, _decode(REQUESTS, "0+5x60"))),
        Scenario("an idle engine", name, 30, (*_ALIVE, _decode(WAITING, "0x60", tp_rank="0"))),
    )


def _pool() -> tuple[Scenario, ...]:
    name = "PdguardPoolBelowContext"

    def engine(instance: str, role: str, pool: int, context: int) -> tuple[Series, ...]:
        labels = {"instance": instance, "engine_type": role, "pp_rank": "0"}
        return tuple(
            Series(metric, {**labels, "tp_rank": rank}, f"{value}x60")
            for metric, value in ((POOL, pool), (CONTEXT, context))
            for rank in ("0", "1")
        )

    return (
        Scenario(
            "prefill cannot take what the context promises",
            name,
            30,
            (*engine(P, "prefill", 681_280, 1_048_576), *engine(D, "decode", 2_040_000, 1_048_576)),
            ({"instance": P}, "367296"),
        ),
        Scenario(
            "a small pool has a small context of its own",
            name,
            30,
            (*engine(P, "prefill", 4096, 4096), *engine(D, "decode", 2_040_000, 1_048_576)),
        ),
    )


def _missing(limits: Limits) -> tuple[Scenario, ...]:
    name = "PdguardHoldCounterMissing"
    each = math.ceil(limits.unheld_aborts / 20)
    aborts = _decode(ABORTED, f"0+{each}x120")
    serves = _decode(REQUESTS, f"0+{9 * each}x120", is_streaming="true")
    return (
        Scenario(
            "aborts and no series",
            name,
            100,
            (*_ALIVE, aborts, serves),
            ({"instance": D}, f"{60 * each}"),
        ),
        Scenario(
            "aborts and holds",
            name,
            100,
            (*_ALIVE, aborts, serves, _decode(RELEASES, "4x120", outcome="drained", tp_rank="0")),
        ),
        Scenario("decode serves nothing", name, 100, (*_ALIVE, aborts)),
        Scenario(
            "prefill has no holds to count",
            name,
            100,
            (
                Series(POOL, {"instance": P, "engine_type": "prefill"}, "100000x120"),
                Series(ABORTED, {"instance": P, "engine_type": "prefill"}, f"0+{each}x120"),
                Series(REQUESTS, {"instance": P, "engine_type": "prefill"}, f"0+{each}x120"),
            ),
        ),
    )
