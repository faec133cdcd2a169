"""`pdguard.metrics/1` meets its schema, is the same for the same reading, and an audit can take it in."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest

from pdguard.outcomes.document import SCHEMA, as_json, metrics_schema
from pdguard.outcomes.interface import EngineOutcomes, Outcomes
from pdguard.outcomes.judge import Fault, Kind
from pdguard.outcomes.sizing import size
from tests.outcomes.made import POLICY, UNKNOWN, collected, decode, outcomes, prefill, times

A_FAULT = Fault("d0", Kind.UNPROVEN, "a fault")
READINGS = [
    outcomes(notes=("a\x1b[0m note",)),
    outcomes(prefill(transfer_seconds=UNKNOWN), decode(hold_times=times(99.0), aborts=UNKNOWN)),
    outcomes(EngineOutcomes("d0", "decode", "", 0.0)),
]


def document(seen: Outcomes) -> str:
    return as_json(seen, size(seen, collected(p={"prefill_told": False}), POLICY, (5.0, 90.0)), (A_FAULT,))


@pytest.mark.parametrize("seen", READINGS)
def test_it_meets_its_schema(seen: Outcomes) -> None:
    schema = metrics_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    text = document(seen)
    jsonschema.validate(json.loads(text), schema)
    assert "\x1b" not in text
    assert document(seen) == text


def test_numbers_without_end_are_strings() -> None:
    made = json.loads(document(READINGS[1]))
    (engine,) = (e for e in made["engines"] if e["name"] == "d0")
    assert engine["hold_seconds"]["p99"] == "inf"
    assert engine["figures"]["aborts"] == {"unknown": UNKNOWN.why, "how": UNKNOWN.how}
    assert made["sizing"][0]["margin"]["margin"]["value"] == "-inf"
    assert math.isinf(float(made["sizing"][0]["margin"]["margin"]["value"]))


def test_it_carries_what_an_audit_takes_in() -> None:
    made = json.loads(document(READINGS[0]))
    assert made["faults"] == ["d0: a fault"]
    assert made["schema"] == SCHEMA == metrics_schema()["$id"]
    facts = {o["fact"]: o["value"] for o in made["observations"]}
    assert (facts["window_holds_drained"], facts["window_holds_timeout"]) == (9, 1)
