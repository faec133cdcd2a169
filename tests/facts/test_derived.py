"""What follows from version, settings and environment of one engine."""

from __future__ import annotations

import pytest

from pdguard.facts.interface import Grade, Value
from tests.facts.build import engine


@pytest.mark.parametrize(
    ("version", "fate"),
    [
        ("0.4.10", None),
        ("0.5.5", "walks on"),
        ("0.5.19", "walks on"),
        ("0.5.20", "is retired late"),
        ("0.5.21", "is retired at the door"),
        ("0.5.23", "is retired at the door"),
        ("0.5.21.dev7", None),
        ("0.5.24", None),
    ],
)
def test_fate_of_a_reject_by_version(version: str, fate: str | None) -> None:
    facts = engine("prefill", version).facts
    assert facts.value("reject_fate") == fate
    fact = facts.get("reject_fate")
    assert fact is None or fact.grade is Grade.CLAIMED
    if fate is None:
        why = facts.why_missing("reject_fate")
        assert why is not None
        assert version in why.reason


@pytest.mark.parametrize(
    ("version", "backend", "setting", "kind", "hold"),
    [
        ("0.5.18", "mooncake", None, None, "impossible"),
        ("0.5.19", "mooncake", False, "finite", "off"),
        ("0.5.19", "mori", True, "finite", "on"),
        ("0.5.20", "mooncake", True, "finite", "on"),
        ("0.5.20", "other", True, "finite", None),
        ("0.5.21", "mooncake", True, "finite", "on"),
        ("0.5.21", "mori", True, "finite", "impossible"),
        ("0.5.21", "other", True, "finite", "impossible"),
        ("0.5.21", "ascend", True, "finite", "on"),
        ("0.5.22", "mori", True, "finite", "on"),
        ("0.5.22", "mooncake", None, None, None),
        ("0.5.22", "mooncake", True, "zero", "off"),
        ("0.5.22", "mooncake", True, "negative", "off"),
        ("0.5.22", "mooncake", True, "nan", "off"),
        ("0.5.23", "mooncake", True, "nan", "on"),
        ("0.5.23", "mooncake", True, "infinite", "on"),
        ("0.5.22", "mooncake", True, None, None),
        ("0.5.24", "mooncake", True, "finite", None),
        ("0.5.24", "mooncake", False, "finite", "off"),
    ],
)
def test_hold_in_force(
    version: str, backend: str, setting: bool | None, kind: str | None, hold: str | None
) -> None:
    facts = engine("decode", version, backend=backend, hold_setting=setting, t_hold_kind=kind).facts
    assert facts.value("hold") == hold
    assert hold is not None or facts.why_missing("hold") is not None


def test_a_hold_that_is_off_needs_no_version_to_be_known() -> None:
    off = engine("decode", "0.5.20", hold_setting=False).facts.get("hold")
    on = engine("decode", "0.5.22", hold_setting=True, t_hold_kind="finite").facts.get("hold")
    assert off is not None
    assert on is not None
    assert (off.grade, on.grade) == (Grade.CONFIGURED, Grade.CLAIMED)


def test_prefill_reads_no_t_hold() -> None:
    assert engine("prefill", "0.5.22", hold_setting=True).facts.value("hold") == "on"


@pytest.mark.parametrize(
    ("version", "threshold", "meaning"),
    [
        ("0.5.21", 0.0, "off"),
        ("0.5.21", 1.0, "partly"),
        ("0.5.22", 0.0, "always"),
        ("0.5.22", 1.0, "off"),
        ("0.5.23", 0.5, "partly"),
    ],
)
def test_host_receive_threshold_changed_its_meaning(version: str, threshold: float, meaning: str) -> None:
    facts = engine("decode", version, host_receive_threshold=threshold).facts
    assert facts.value("host_receive") == meaning


@pytest.mark.parametrize(
    ("version", "given", "outcomes"),
    [
        ("0.5.22", {"holds_drained": 3, "holds_timeout": 0, "holds_error": 0}, "counted"),
        ("0.5.22", {"holds_drained": 0, "holds_timeout": 0, "holds_error": 0}, "none yet"),
        ("0.5.22", {"metrics_on": False}, "metrics off"),
        ("0.5.21", {}, "no such metric"),
        ("0.5.22", {}, None),
    ],
)
def test_release_outcomes(version: str, given: dict[str, Value | None], outcomes: str | None) -> None:
    assert engine("decode", version, **given).facts.value("outcomes") == outcomes


@pytest.mark.parametrize(
    ("version", "tp", "local"), [("0.5.22", 2, True), ("0.5.22", 1, False), ("0.5.23", 8, False)]
)
def test_rank_local_hold(version: str, tp: int, local: bool) -> None:
    assert engine("decode", version, tp_size=tp).facts.value("rank_local_hold") is local
