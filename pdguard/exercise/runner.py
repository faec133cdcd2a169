"""Runs contracts on one installed engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pdguard.exercise.catalogue import Contract, select
from pdguard.exercise.model import ContractResult, Engine, ExerciseReport, State
from pdguard.exercise.process import EngineProcess, ExerciseError
from pdguard.transport.interface import Starter

LIMIT = 30.0
"""Seconds for one contract."""


def run_exercise(
    python: str,
    engine_path: str | None = None,
    contracts: Sequence[str] | None = None,
    timeout: float = 300.0,
    transport: Starter | None = None,
) -> ExerciseReport:
    """Run contracts in `python`, each in a process of its own; never raises for what the engine does.

    `engine_path` is put first on `sys.path` (an unpacked wheel, a checkout's `python` folder); None takes the
    `sglang` that `python` has installed. Both are paths of the node that `transport` leads to (None: this
    machine). `contracts` as in `catalogue.select`. What `timeout` leaves no time for, and everything where
    the engine cannot be started, is `not-run` with the reason.

    Raises SelectionError for a contract that does not exist.
    """
    chosen = select(contracts)
    deadline = time.monotonic() + timeout
    results: list[ContractResult] = []
    engine = Engine(python, engine_path)
    try:
        with EngineProcess(python, engine_path, deadline, transport) as process:
            engine = process.engine
            for contract in chosen:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                found = process.run(contract.run, contract.arguments, contract.environment, min(LIMIT, left))
                results.append(result(contract, found, engine.stand_ins))
        why = "no time was left"
    except ExerciseError as error:
        why = str(error)
    results += [not_run(contract, why) for contract in chosen[len(results) :]]
    return ExerciseReport(engine, tuple(results))


def not_run(contract: Contract, why: str) -> ContractResult:
    """A contract that did not run."""
    return result(contract, {"outcome": "none", "state": "not-run", "why": why})


def result(contract: Contract, found: Mapping[str, Any], known: Sequence[str] = ()) -> ContractResult:
    """Read what the engine's side says, which is not to be trusted blindly."""
    words: dict[str, State] = {"pass": "pass", "fail": "fail"}
    state = words.get(str(found.get("state")), "not-run")
    saw = found.get("saw")
    return ContractResult(
        id=contract.id,
        fixes=contract.fixes,
        backend=contract.backend,
        hold=contract.hold,
        outcome=str(found.get("outcome", "none")),
        state=state,
        why=str(found.get("why", "")),
        stand_ins=tuple(str(what) for what in found.get("stand_ins", ()) if what not in known),
        saw=saw if isinstance(saw, dict) else {},
    )
