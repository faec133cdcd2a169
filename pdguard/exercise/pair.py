"""The abort handshake between two installed engines: two isolated processes, their messages relayed here."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pdguard.exercise.catalogue import Contract, handshake_fixes
from pdguard.exercise.engine import refusals
from pdguard.exercise.engine.situations import SITUATIONS, TOGETHER, Stuck, drive
from pdguard.exercise.model import ContractResult, Engine, PairReport
from pdguard.exercise.process import EngineProcess, ExerciseError
from pdguard.exercise.runner import LIMIT, not_run, result

_ROOM = 41
_MESSAGES = ("frames", "web", "answer")


class CallFailed(Exception):
    """The engine's side of a call did not come to its end; holds what it gave instead."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(str(given.get("why", "")))
        self.given = given


class _End:
    """One of the two processes while it plays its side."""

    def __init__(self, process: EngineProcess, settings: Mapping[str, Any], deadline: float) -> None:
        self.process, self.deadline = process, deadline
        self.forward: Callable[[Mapping[str, Any]], None] = lambda _message: None
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._returns: queue.Queue[dict[str, Any] | ExerciseError] = queue.Queue()
        process.write({"peer": settings})

    def listen(self) -> None:
        """Relay until the side has ended; runs in a thread."""
        try:
            while "ended" not in (message := self.process.read(self.deadline)):
                if any(kind in message for kind in _MESSAGES):
                    self.forward(message)
                else:
                    self._returns.put(message)
            self._returns.put(message)
        except ExerciseError as error:
            self._returns.put(error)

    def send(self, message: Mapping[str, Any]) -> None:
        """One line to this side."""
        with self._lock:
            self.process.write(message)

    def call(self, rank: int, method: str, *arguments: Any) -> Any:
        """Call a method of the engine-side object."""
        number = next(self._numbers)
        self.send({"call": number, "rank": rank, "method": method, "arguments": arguments})
        answer = self._next()
        if answer.get("return") != number:
            given = answer.get(
                "broke", {"outcome": "crash", "state": "not-run", "why": f"the side ended: {answer}"}
            )
            raise CallFailed(given)
        if "raised" in answer:
            raise CallFailed(answer["raised"])
        return answer.get("value")

    def _next(self) -> dict[str, Any]:
        try:
            answer = self._returns.get(timeout=max(0.0, self.deadline - time.monotonic()))
        except queue.Empty:
            raise ExerciseError("a side did not answer", expected="an answer in time", found="none") from None
        if isinstance(answer, ExerciseError):
            raise answer
        return answer

    def finish(self) -> None:
        """Let the side end, so that the process can play another."""
        self.send({"end": True})
        while "ended" not in self._next():
            continue


class _Side:
    """Calls of `situations.PrefillSide` and `DecodeSide`, over the pipe."""

    def __init__(self, end: _End, rank: int) -> None:
        self._end, self._rank = end, rank

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *arguments: self._end.call(self._rank, method, *arguments)


def run_pair(
    python_a: str,
    path_a: str | None,
    python_b: str,
    path_b: str | None,
    backend: str,
    *,
    hold: str = "on",
    situations: Sequence[str] = (TOGETHER, *SITUATIONS),
    timeout: float = 300.0,
) -> PairReport:
    """`a` plays decode, `b` plays prefill: whether they come together at all, and the six ends of an abort.

    Where decode refuses prefill's answer about itself because of names that it does not know, the first is
    `refused`, and the six run with those names left out, which their `stand_ins` say. `situations` may also
    name the orders of a refusal at one door, of `refusals.CASES`.
    """
    deadline = time.monotonic() + timeout
    decode, prefill = Engine(python_a, path_a), Engine(python_b, path_b)
    try:
        with ExitStack() as stack:
            started = _start(stack, ((python_a, path_a), (python_b, path_b)), deadline)
            return between(
                started[0], started[1], backend, hold=hold, situations=situations, deadline=deadline
            )
    except ExerciseError as error:
        chosen = [_contract(backend, situation, hold) for situation in situations]
        results = tuple(not_run(contract, str(error)) for contract in chosen)
        return PairReport(decode, prefill, backend, hold, results)


def between(
    decode: EngineProcess,
    prefill: EngineProcess,
    backend: str,
    *,
    hold: str = "on",
    situations: Sequence[str] = (TOGETHER, *SITUATIONS),
    deadline: float,
) -> PairReport:
    """As `run_pair`, with processes that run already and go on running; `deadline` is monotonic time."""
    chosen = [_contract(backend, situation, hold) for situation in situations]
    results: list[ContractResult] = []
    why = "no time was left"
    try:
        for contract in chosen:
            if time.monotonic() >= deadline:
                break
            limit = min(deadline, time.monotonic() + LIMIT)
            results.append(result(contract, _situation(decode, prefill, contract, limit)))
    except ExerciseError as error:
        why = str(error)
    results += [not_run(contract, why) for contract in chosen[len(results) :]]
    return PairReport(decode.engine, prefill.engine, backend, hold, tuple(results))


def _contract(backend: str, situation: str, hold: str) -> Contract:
    fixes: tuple[str, ...] = ()
    if situation in refusals.CASES:
        fixes = ("X6",)
    elif situation != TOGETHER:
        fixes = handshake_fixes(backend, situation, hold)
    arguments = {"backend": backend, "situation": situation, "hold": hold}
    return Contract(f"pair.{backend}.{hold}.{situation}", "handshake", fixes, arguments, backend, hold)


def _start(
    stack: ExitStack, wanted: Sequence[tuple[str, str | None]], deadline: float
) -> list[EngineProcess]:
    """Both at once: each imports its engine for some seconds."""
    processes = [EngineProcess(python, path, deadline) for python, path in wanted]
    failures: list[ExerciseError] = []

    def enter(process: EngineProcess) -> None:
        try:
            process.__enter__()
        except ExerciseError as error:
            failures.append(error)

    for process in processes:
        stack.callback(process.close)
    threads = [threading.Thread(target=enter, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return processes


def _situation(
    decode: EngineProcess, prefill: EngineProcess, contract: Contract, deadline: float
) -> Mapping[str, Any]:
    situation = str(contract.arguments["situation"])
    ranks = 2 if situation == "two-decode-ranks" or situation in refusals.CASES else 1
    common = {"backend": contract.backend, "hold": contract.hold}
    ends = (
        _End(decode, {**common, "side": "decode", "ranks": ranks, "adapt": situation != TOGETHER}, deadline),
        _End(prefill, {**common, "side": "prefill"}, deadline),
    )
    ends[0].forward, ends[1].forward = ends[1].send, ends[0].send
    for end in ends:
        threading.Thread(target=end.listen, daemon=True).start()
    sides = (_Side(ends[1], 0), [_Side(ends[0], rank) for rank in range(ranks)])
    try:
        found = _driven(situation, *sides)
    except CallFailed as error:
        found = error.given
    for end in ends:
        end.finish()
    return found


def _driven(situation: str, prefill: _Side, decodes: list[_Side]) -> Mapping[str, Any]:
    prefill.start()
    for side in decodes:
        side.start()
    try:
        if situation in refusals.CASES:
            found = refusals.drive(situation, prefill, list(decodes), _ROOM)
        else:
            found = drive(situation, prefill, list(decodes), _ROOM)
    except Stuck as error:
        strange = ", ".join(decodes[0].strange())
        note = f" (names in prefill's answer that decode does not know: {strange})" if strange else ""
        outcome, state = ("refused", "fail") if situation == TOGETHER else ("stuck", "not-run")
        found = {"outcome": outcome, "state": state, "why": f"{error}{note}"}
    return {**found, "stand_ins": sorted({*prefill.notes(), *decodes[0].notes()})}
