"""Typical deployments, completed by the real derive functions: exactly these checks fail on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pdguard.facts.interface import Collected, Value
from pdguard.policy.evaluate import evaluate
from pdguard.policy.model import Status
from tests.checks.fleets import engine, fleet, ids
from tests.checks.recorded import catalogue

HOLD = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
SAID_ON: dict[str, Value] = {
    "hold_raw": "on",
    "hold_misread": "said on, is off",
    "env_not_understood": (HOLD,),
}
"""The environment of an engine before 0.5.21 whose operator wrote `on`."""


@dataclass(frozen=True)
class Scenario:
    """A fleet and the checks that fail on it, as `ID target`."""

    name: str
    build: Callable[[], Collected]
    fails: str


NOTHING: dict[str, Value] = {}


def pair(version: str, prefill: dict[str, Value] = NOTHING, decode: dict[str, Value] = NOTHING) -> Collected:
    """One prefill and one decode of the same version, each with changes of its own."""
    return fleet(engine("p", "prefill", version, **prefill), engine("d", "decode", version, **decode))


def both(version: str, **changes: Value) -> Collected:
    """One prefill and one decode with the same changes."""
    return pair(version, prefill=changes, decode=changes)


def mixed(prefill: str, decode: str) -> Collected:
    """A prefill and a decode of different versions, all else alike."""
    return fleet(engine("p", "prefill", prefill), engine("d", "decode", decode))


SCENARIOS = (
    Scenario("0.5.23 as it comes", lambda: both("0.5.23"), ""),
    Scenario("0.5.23 with a longer T_hold", lambda: both("0.5.23", t_hold=60.0), ""),
    Scenario("0.5.22 NIXL", lambda: both("0.5.22", backend="nixl"), "412 p→d"),
    Scenario("0.5.23 NIXL", lambda: both("0.5.23", backend="nixl"), ""),
    Scenario("0.5.21 Mooncake", lambda: both("0.5.21"), "412 p→d, 603 d"),
    Scenario("0.5.21 MORI cannot hold", lambda: both("0.5.21", backend="mori"), "402 d, 425 p"),
    Scenario(
        "0.5.22 MORI",
        lambda: both("0.5.22", backend="mori", mori_timeout_ms=20000),
        "412 p→d",
    ),
    Scenario(
        "0.5.19 with the hold unset",
        lambda: both("0.5.19"),
        "206 p, 206 d, 303 p→d, 401 d, 410 d, 603 d",
    ),
    Scenario(
        "0.5.20 with the hold 'on'",
        lambda: both("0.5.20", **SAID_ON),
        "207 p, 303 p→d, 401 d, 403 p, 403 d, 419 p, 419 d, 603 d",
    ),
    Scenario(
        "0.5.20 with the hold 1",
        lambda: both("0.5.20", hold_setting=True, hold_raw="1"),
        "207 p, 303 p→d, 407 p→d, 408 d, 413 p→d, 415 d, 603 d",
    ),
    Scenario(
        "0.5.20 with the hold 1 and T_hold as advised",
        lambda: both("0.5.20", hold_setting=True, hold_raw="1", t_hold=90.0),
        "207 p, 303 p→d, 413 p→d, 415 d, 603 d",
    ),
    Scenario(
        "0.5.20 with the hold on decode alone",
        lambda: pair("0.5.20", decode={"hold_setting": True, "hold_raw": "1", "t_hold": 90.0}),
        "207 p, 303 p→d, 411 p→d, 414 p→d, 415 d, 603 d",
    ),
    Scenario(
        "0.5.22 with the hold 'off', which stays on",
        lambda: both("0.5.22", hold_raw="off", hold_misread="said off, is on", env_not_understood=(HOLD,)),
        "404 p, 404 d, 419 p, 419 d",
    ),
    Scenario(
        "0.5.22 with T_hold 0",
        lambda: pair("0.5.22", decode={"t_hold": 0.0, "t_hold_kind": "zero"}),
        "401 d, 405 d, 414 p→d",
    ),
    Scenario("0.5.21 prefill, 0.5.22 decode", lambda: mixed("0.5.21", "0.5.22"), "308 p→d, 411 p→d"),
    Scenario(
        "0.5.22 prefill, 0.5.21 decode",
        lambda: mixed("0.5.22", "0.5.21"),
        "308 p→d, 314 p→d, 411 p→d, 603 d",
    ),
    Scenario("0.5.22 and 0.5.23 go together", lambda: mixed("0.5.22", "0.5.23"), "308 p→d"),
    Scenario(
        "the published incident on 0.5.19",
        lambda: pair(
            "0.5.19",
            prefill={"context_length": 1048576, "pool": 681280},
            decode={"context_length": 1048576, "pool": 2040000},
        ),
        "101 p, 108 d, 201 p→d, 206 p, 206 d, 303 p→d, 401 d, 409 p, 410 d, 603 d",
    ),
    Scenario(
        "the same sizes on 0.5.23",
        lambda: pair(
            "0.5.23",
            prefill={"context_length": 1048576, "pool": 681280},
            decode={"context_length": 1048576, "pool": 2040000},
        ),
        "101 p, 108 d, 202 p→d, 409 p",
    ),
    Scenario(
        "the same, with the context that the findings name",
        lambda: both("0.5.23", context_length=681280, pool=681280 + 512, batch_cap=1024),
        "",
    ),
    Scenario(
        "a decode smaller than its prefill",
        lambda: pair("0.5.23", prefill={"pool": 65536}, decode={"pool": 16384}),
        "102 d, 108 p, 203 p→d, 204 p→d",
    ),
    Scenario(
        "decode keeps back what the context needs",
        lambda: both("0.5.23", pool=32768),
        "108 p, 108 d, 204 p→d",
    ),
    Scenario(
        "two ranks on 0.5.22",
        lambda: pair("0.5.22", prefill={"tp_size": 2}, decode={"tp_size": 2}),
        "416 d",
    ),
    Scenario(
        "holds that time out",
        lambda: pair("0.5.22", decode={"holds_drained": 2, "holds_timeout": 88}),
        "610 d",
    ),
)


@pytest.mark.parametrize("scenario", [pytest.param(s, id=s.name) for s in SCENARIOS])
def test_exactly_these_checks_fail(scenario: Scenario) -> None:
    collected = scenario.build()
    assert ids(collected, Status.FAIL) == {f for f in scenario.fails.split(", ") if f}
    assert ids(collected, Status.UNKNOWN) == set()


def test_the_finding_names_the_context_length_that_makes_it_go_away() -> None:
    """What a finding tells the operator to set, set: no check of limits fails any more."""
    sizes = {"p": 681280, "d": 700000}
    before = fleet(
        engine("p", "prefill", context_length=1048576, pool=sizes["p"]),
        engine("d", "decode", context_length=1048576, pool=sizes["d"]),
    )
    named = before.cluster.facts.integer("safe_context")
    assert named is not None
    steps = {s for f in evaluate(catalogue(), before) if f.status is Status.FAIL for s in f.fix}
    assert any(f"--context-length {named} " in s for s in steps)
    after = fleet(
        engine("p", "prefill", context_length=named, pool=sizes["p"]),
        engine("d", "decode", context_length=named, pool=sizes["d"]),
    )
    assert not {i for i in ids(after, Status.FAIL) if i[0] in "12"}


def test_a_cluster_without_engines_says_so() -> None:
    assert ids(Collected(fleet().cluster), Status.FAIL) == {"107 c"}
