"""What exercises settle: the strongest grade short of watching the service, and nothing where nothing ran."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pdguard.facts.exercised import add_exercised_facts, contracts_for
from pdguard.facts.interface import FactSet, Grade, Value
from tests.facts.build import engine


@dataclass(frozen=True)
class Ran:
    id: str
    outcome: str
    state: str = "pass"


def facts_of(backend: str, *results: Ran) -> FactSet:
    facts = engine("decode", "0.5.22", backend=backend).facts
    add_exercised_facts(facts, results)
    return facts


DOORS = (Ran("door.prefill.rejected", "fixed"), Ran("door.decode.rejected", "fixed"))
OPEN = (Ran("door.prefill.rejected", "vulnerable", "fail"), Ran("door.decode.rejected", "vulnerable", "fail"))


@pytest.mark.parametrize(
    ("results", "fate", "grade"),
    [
        (DOORS, "is retired at the door", Grade.EXERCISED),
        ((*OPEN, Ran("result.prefill.aborted", "fixed")), "is retired late", Grade.EXERCISED),
        ((*OPEN, Ran("result.prefill.aborted", "vulnerable", "fail")), "walks on", Grade.EXERCISED),
        ((Ran("door.prefill.rejected", "none", "not-run"),), "is retired at the door", Grade.CLAIMED),
        (DOORS[:1], "is retired at the door", Grade.CLAIMED),
    ],
)
def test_fate_of_a_reject(results: tuple[Ran, ...], fate: str, grade: Grade) -> None:
    fact = facts_of("mooncake", *results).get("reject_fate")
    assert fact is not None
    assert (fact.value, fact.grade) == (fate, grade)


@pytest.mark.parametrize(
    ("name", "cells", "value"),
    [
        ("ack_kept", {"cleared-before-drain": "drained", "cleared-before-abort": "drained"}, True),
        ("ack_kept", {"cleared-before-drain": "drained", "cleared-before-abort": "timeout"}, False),
        ("ack_every_rank", {"two-decode-ranks": "partial"}, False),
        ("early_ack", {"failed-send": "early ack"}, True),
        ("early_ack", {"failed-send": "timeout"}, False),
    ],
)
def test_cells_of_the_handshake(name: str, cells: dict[str, str], value: Value) -> None:
    results = [Ran(f"handshake.nixl.on.{cell}", word) for cell, word in cells.items()]
    fact = facts_of("nixl", *results).get(name)
    assert fact is not None
    assert (fact.value, fact.grade) == (value, Grade.EXERCISED)
    # Another backend's cells settle nothing.
    other = facts_of("mooncake", *results).get(name)
    assert other is not None
    assert other.grade is Grade.CLAIMED


def test_a_send_that_is_not_held_says_nothing_of_early_acknowledgements() -> None:
    fact = facts_of("mooncake", Ran("handshake.mooncake.on.failed-send", "no hold", "fail")).get("early_ack")
    assert fact is not None
    assert fact.grade is Grade.CLAIMED


def test_an_audit_runs_its_own_backend_s_contracts() -> None:
    assert "handshake.nixl.on" in contracts_for("nixl")
    assert not [c for c in contracts_for("other") if c.startswith("handshake")]


def test_a_double_is_not_the_library() -> None:
    """What MORI's code does with a stand-in of its library is never graded above its source."""
    cells = {
        "cleared-before-drain": "drained",
        "cleared-before-abort": "drained",
        "two-decode-ranks": "drained",
    }
    results = [Ran(f"handshake.mori.on.{cell}", word) for cell, word in cells.items()]
    results += [Ran("handshake.mori.on.failed-send", "timeout")]
    results += [Ran(f"hold.failure.mori.{origin}", "held") for origin in ("prefill-failure", "transport")]
    facts = facts_of("mori", *DOORS, *results)
    names = ("ack_kept", "ack_every_rank", "early_ack", "hold_scope")
    grades = {name: fact.grade for name in names if (fact := facts.get(name)) is not None}
    assert grades == dict.fromkeys(names, Grade.FINGERPRINTED)
    assert facts.value("ack_kept") is True
    # The doors are the engine's own and need no library.
    fate = facts.get("reject_fate")
    assert fate is not None
    assert fate.grade is Grade.EXERCISED
