"""Facts from exercises: what the installed engine code did when it was run by itself.

Grade: exercised; of backends whose library was stood in for (MORI, Ascend), fingerprinted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from pdguard.cluster.model import Cluster
from pdguard.errors import InputError
from pdguard.facts import history
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade, Subject, Value
from pdguard.facts.process import NodeReading

SOURCE = "exercise"
EXERCISE_SECONDS = 180.0
ORIGINS = ("prefill-failure", "transport")
"""Failures besides decode's own abort; a failed restore is judged by a contract of its own."""

DOUBLED = ("mori", "ascend")
"""Backends whose library was never seen: what stands in for it is what the engine's code takes it to be."""


class Result(Protocol):
    """What is needed of the result of one contract."""

    @property
    def id(self) -> str:
        """The contract."""

    @property
    def outcome(self) -> str:
        """What happened, in a word."""

    @property
    def state(self) -> str:
        """pass, fail or not-run."""


def add_exercised_facts(facts: FactSet, results: Sequence[Result]) -> None:
    """Add what the exercises settle for this engine's backend; what did not run settles nothing."""
    ran = {r.id: r for r in results if r.state != "not-run"}
    backend = facts.text("backend") or ""

    def word(contract: str) -> str | None:
        return ran[contract].outcome if contract in ran else None

    def add(name: str, value: Value, *contracts: str) -> None:
        evidence = tuple(Evidence(SOURCE, c, word(c) or "") for c in contracts)
        facts.put(name, Fact(value, _grade(contracts), evidence))

    doors = "door.prefill.rejected", "door.decode.rejected"
    outcomes = [word(d) for d in doors]
    late = word("result.prefill.aborted")
    if outcomes == ["fixed", "fixed"]:
        add("reject_fate", history.RETIRED_AT_DOOR, *doors)
    elif outcomes[0] == "vulnerable" and late == "fixed":
        add("reject_fate", history.RETIRED_LATE, doors[0], "result.prefill.aborted")
    elif outcomes[0] == "vulnerable" and late == "vulnerable":
        add("reject_fate", history.WALKS_ON, doors[0], "result.prefill.aborted")
    told = f"refusal.prefill.{backend}", f"refusal.decode.{backend}"
    if all(word(c) is not None for c in told):
        add("refusal_told", all(word(c) == "released" for c in told), *told)
    cell = f"handshake.{backend}.on."
    cleared = f"{cell}cleared-before-drain", f"{cell}cleared-before-abort"
    if all(word(c) in ("drained", "timeout") for c in cleared):
        add("ack_kept", all(word(c) == "drained" for c in cleared), *cleared)
    if word(f"{cell}two-decode-ranks") in ("drained", "partial"):
        add("ack_every_rank", word(f"{cell}two-decode-ranks") == "drained", f"{cell}two-decode-ranks")
    if word(f"{cell}failed-send") in ("early ack", "timeout"):
        add("early_ack", word(f"{cell}failed-send") == "early ack", f"{cell}failed-send")
    failures = tuple(f"hold.failure.{backend}.{origin}" for origin in ORIGINS)
    if all(word(c) is not None for c in failures):
        held = all(word(c) == "held" for c in failures)
        if held or word(f"{cell}quiescent") in ("drained", "timeout"):
            add("hold_scope", "every failure" if held else "decode aborts", *failures)
    # Ascend is run on a double of its library: what that shows grades nothing of an engine on Ascend.
    if backend != "ascend" and word("transfer.batch-cap.mooncake") is not None:
        contract = "transfer.batch-cap.mooncake"
        add("batch_cap_support", word(contract) == "capped", contract)
    fakes = "hold.fake-receiver.default", "hold.fake-receiver.on"
    if all(word(c) is not None for c in fakes):
        add("fake_receiver_fault", any(word(c) != "fixed" for c in fakes), *fakes)
    if word("hicache.restore-consensus") is not None:
        add("restore_fault", word("hicache.restore-consensus") != "fixed", "hicache.restore-consensus")


def _grade(contracts: Iterable[str]) -> Grade:
    """A double is not the library: what was run against one says no more than the source that was run."""
    doubled = any(set(DOUBLED) & set(contract.split(".")) for contract in contracts)
    return Grade.FINGERPRINTED if doubled else Grade.EXERCISED


def run_exercises(
    cluster: Cluster,
    engines: Sequence[Subject],
    nodes: Mapping[str, NodeReading],
    progress: Callable[[str], None] | None,
) -> None:
    """Exercise each distinct installed engine of the local nodes once, and add what it showed."""
    from pdguard.exercise.local import interpreter_of
    from pdguard.exercise.runner import run_exercise

    done: dict[tuple[str, str, str], Sequence[Result]] = {}
    for engine, subject in zip(cluster.engines, engines, strict=True):
        node = cluster.nodes.get(engine.node or "")
        reading = nodes.get(engine.node or "")
        found = None if reading is None else reading.engines.get(engine.name)
        if node is None or node.transport != "local" or found is None or found.engine is None:
            subject.facts.miss("exercised", "only engines on local nodes are exercised")
            continue
        backend = subject.facts.text("backend") or ""
        try:
            python, path = interpreter_of(found.engine.pid)
        except InputError as error:
            subject.facts.miss("exercised", error.what, error.todo)
            continue
        key = (python, path, backend)
        if key not in done:
            if progress is not None:
                progress(f"exercising the installed code of {engine.name} (a minute or so)")
            done[key] = run_exercise(python, path, contracts_for(backend), EXERCISE_SECONDS).results
        add_exercised_facts(subject.facts, done[key])
        summary = exercised_summary(done[key])
        subject.facts.add("exercised", summary, _grade(r.id for r in done[key]), SOURCE, "contracts")


def contracts_for(backend: str) -> list[str]:
    """The contracts that an audit runs: those of admission and of the engine's own backend."""
    own = (
        [f"handshake.{backend}.on", f"hold.failure.{backend}"]
        if backend in ("mooncake", "nixl", "mori")
        else []
    )
    if backend in ("mooncake", "nixl"):
        own += [f"refusal.prefill.{backend}", f"refusal.decode.{backend}"]
    shared = ["door", "result", "hold.fake-receiver", "transfer.batch-cap.mooncake", "hicache"]
    return [*shared, *own]


def exercised_summary(results: Sequence[Result]) -> tuple[str, ...]:
    """`72 run, 66 pass, 6 fail, 0 not run`, for the facts of an engine."""
    states = [r.state for r in results]
    return tuple(f"{states.count(s)} {s}" for s in ("pass", "fail", "not-run"))
