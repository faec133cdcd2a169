"""The first line of a reading, and the step after it."""

from __future__ import annotations

from dataclasses import replace

from pdguard.facts.interface import Value
from pdguard.outcomes.interface import EngineOutcomes, Figure, Gap, Outcomes, Source
from pdguard.outcomes.judge import faults
from pdguard.outcomes.said import Said, Word, said
from pdguard.outcomes.sizing import size
from tests.outcomes.made import POLICY, UNKNOWN, collected, decode, figure, outcomes, prefill

DARK = dict.fromkeys(("drained", "timeout", "error"), UNKNOWN)


def holds(drained: float, timeout: float = 0.0) -> dict[str, object]:
    return {"drained": figure(drained), "timeout": figure(timeout), "error": figure(0)}


def verdict(*decodes: EngineOutcomes, seconds: float = 100.0, **more: dict[str, Value]) -> Said:
    seen: Outcomes = replace(outcomes(prefill(), *decodes), seconds=seconds)
    sizing = size(seen, collected(**more), POLICY)
    return said(seen, sizing, faults(seen, sizing, POLICY), POLICY)


def test_too_many_without_proof() -> None:
    found = verdict(decode(holds=holds(60, 40)))
    assert (found.word, found.text) == (
        Word.AT_RISK,
        "prod: too many holds ended without proof on d0",
    )
    assert found.step.startswith("find out why prefill's word does not reach d0")


def test_a_hold_that_is_off_or_short() -> None:
    off = verdict(decode(holds=holds(60, 40)), d={"hold": "off"})
    assert off.text == ("prod: too many holds ended without proof on d0; T_hold is off or too short on d0")
    assert off.step == "turn the hold on, with T_hold 60 s on d0: `pdguard harden` plans it"
    short = verdict(decode(), d={"t_hold": 10.0})
    assert short.step == "raise T_hold to 60 s on d0: `pdguard harden` plans it"
    untold = verdict(decode(), p={"prefill_told": False})
    assert untold.step.startswith("update or harden the prefills of d0")
    impossible = verdict(decode(), p={"transfer_timeout": 200.0})
    assert "lower MC_TRANSFER_TIMEOUT" in impossible.step


def test_unknown_where_no_decode_tells() -> None:
    found = verdict(decode(holds=DARK))
    assert (found.word, found.text) == (
        Word.UNKNOWN,
        "prod: no decode tells how its holds ended; unknown is not a pass",
    )
    assert found.step == "start it with --enable-metrics (d0)"
    assert verdict().word is Word.UNKNOWN
    assert "role: decode" in verdict().step


def test_one_decode_in_the_dark_is_said() -> None:
    found = verdict(decode(holds=holds(40)), replace(decode(holds=DARK), name="d1"))
    assert (found.word, found.text) == (
        Word.CLEAN,
        "prod: 0 of 40 holds ended without proof on 1 of 2 decodes;"
        " how holds ended is unknown on 1 of 2 decodes",
    )
    assert found.step == "start it with --enable-metrics (d1)"


def test_quiet() -> None:
    none = verdict(decode(holds=holds(0)))
    assert (none.word, none.text) == (
        Word.QUIET,
        "prod: nothing was held on 1 of 1 decode, so nothing is proven",
    )
    assert none.step == "count since each engine's start: --window 0"
    assert "pdguard probe --abort" in verdict(decode(holds=holds(0)), seconds=0.0).step
    few = verdict(decode(holds=holds(0, 19)))
    assert (few.word, few.text) == (
        Word.QUIET,
        "prod: 19 of 19 holds ended without proof on 1 of 1 decode:"
        " too few on each decode to judge (policy.min_holds is 20)",
    )


def test_a_longer_window_where_prometheus_looks_back() -> None:
    zero = Figure(0.0, Source.PROMETHEUS, "query")
    quiet = decode(holds=dict.fromkeys(("drained", "timeout", "error"), zero))
    assert verdict(quiet, seconds=900.0).step == "look at a longer window: --window 1h"
    assert verdict(quiet, seconds=3600.0).step == "look at a longer window: --window 6h"


def test_clean() -> None:
    found = verdict(decode(holds=holds(99, 1)))
    assert (found.word, found.text) == (
        Word.CLEAN,
        "prod: 1 of 100 holds ended without proof on 1 of 1 decode",
    )
    assert found.step.startswith("nothing to do")
    assert verdict(decode(holds=holds(99)), d={"t_hold": 30.0}).step.startswith("raise T_hold to 60 s on d0")


def test_a_log_alone_is_no_proof() -> None:
    found = verdict(decode(holds={**holds(0, 3), "drained": Gap("no line in the log")}))
    assert found.word is Word.UNKNOWN
