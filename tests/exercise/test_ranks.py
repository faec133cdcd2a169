"""The driver of several ranks: what it makes of them, and that none outlives it. No engine is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pdguard.exercise.catalogue import RANKS
from pdguard.exercise.engine import boot, crew, ranks, situations

Held = dict[str, Any]
Rule = Callable[[list[Held]], list[bool]]
"""Which of the ranks release a request, by what each knows of it."""


def together(said: list[Held]) -> list[bool]:
    return [all(one["acked"] or one["late"] for one in said)] * len(said)


def each_alone(said: list[Held]) -> list[bool]:
    return [one["acked"] or one["late"] for one in said]


def any_will_do(said: list[Held]) -> list[bool]:
    return [any(one["acked"] or one["late"] for one in said)] * len(said)


def acks_of_the_first(said: list[Held]) -> list[bool]:
    return [said[0]["acked"] or said[0]["late"]] * len(said)


def only_by_time(said: list[Held]) -> list[bool]:
    return [all(one["late"] for one in said)] * len(said)


def never(said: list[Held]) -> list[bool]:
    return [False] * len(said)


class Model:
    """Ranks with one rule, in place of processes with an engine."""

    def __init__(self, rule: Rule, *, holds: str = "all", alone: str = "error", busy: bool = False) -> None:
        self._rule, self._holds, self._alone, self._busy = rule, holds, alone, busy
        self._rooms: dict[int, dict[int, Held]] = {}
        self.left = list(range(crew.RANKS))
        self._missing = False

    def __call__(self, *_arguments: Any) -> Model:
        return self

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_what: object) -> None:
        pass

    def end(self, rank: int) -> None:
        self.left.remove(rank)
        self._missing = True

    halt = end

    def each(self, what: str, room: int, how: Mapping[int, str] | None = None) -> None:
        for rank in self.left:
            kind = (how or {}).get(rank, "in-flight")
            if what == "open":
                self._rooms.setdefault(room, {})[rank] = {
                    **{"kind": kind, "acked": kind == "unmet", "late": False, "state": "queued"},
                }
            else:
                held = self._rooms[room][rank]
                held["acked"] |= held["kind"] == "quiescent"
                held["until"] = time.monotonic() + situations.HOLD_SECONDS

    def ask(self, rank: int, what: str, **more: Any) -> Any:
        mine = [room[rank] for room in self._rooms.values()]
        if what == "settle":
            for held in mine:
                held["acked"] = True
        elif what == "acked":
            return self._rooms[more["room"]][rank]["acked"]
        elif what == "jump":
            for held in mine:
                held["until"] -= more["seconds"]
        elif what == "tick":
            return {"states": {}, "collectives": int(self._busy)}
        return True

    def _turn(self) -> None:
        for room in self._rooms.values():
            for held in room.values():
                held["late"] = time.monotonic() >= held["until"]
                if held["state"] == "queued":
                    goes = self._holds == "none" or (self._holds == "own" and held["kind"] == "unmet")
                    held["state"] = "at once" if goes else "held"
            said = [room[rank] for rank in self.left]
            for held, go in zip(said, self._rule(said), strict=True):
                if go and held["state"] == "held":
                    held["state"] = "timeout" if held["late"] else "drained"

    def round(self) -> list[dict[str, str]]:
        self._turn()
        return [self._states(rank) for rank in self.left]

    def _states(self, rank: int) -> dict[str, str]:
        return {str(number): room[rank]["state"] for number, room in self._rooms.items()}

    def round_of_the_left(self) -> dict[int, Any]:
        if self._missing and self._alone == "error":
            return {rank: {"broke": "the peer is gone", "states": self._states(rank)} for rank in self.left}
        if self._missing and self._alone == "hang":
            return dict.fromkeys(self.left)
        self._turn()
        return {rank: {"states": self._states(rank), "collectives": 1} for rank in self.left}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(situations, "HOLD_SECONDS", 0.3)


def verdict(monkeypatch: pytest.MonkeyPatch, case: str, model: Model) -> str:
    monkeypatch.setattr(ranks, "Crew", model)
    found = ranks.together(case, "mooncake")
    assert (found["state"] == "pass") == (found["outcome"] == "fixed")
    return str(found["outcome"])


def test_the_catalogue_knows_every_case() -> None:
    assert set(RANKS) == set(ranks.CASES)


@pytest.mark.parametrize("case", RANKS)
def test_ranks_that_agree_pass(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    assert verdict(monkeypatch, case, Model(together)) == "fixed"


FAULTS: tuple[tuple[str, Model, str], ...] = (
    *((case, Model(each_alone, alone="on"), "rank-local") for case in RANKS[1:6]),
    *((case, Model(any_will_do, alone="on"), "rank-local") for case in RANKS[:6]),
    ("acknowledged-on-one", Model(acks_of_the_first), "rank-local"),
    ("nothing-to-hold-on-one", Model(acks_of_the_first), "rank-local"),
    ("nothing-to-hold-on-one", Model(together, holds="own"), "rank-local"),
    *((case, Model(together, holds="none"), "no hold") for case in RANKS[:6]),
    *((case, Model(only_by_time), "timeout") for case in RANKS[:3]),
    *((case, Model(together, alone="hang"), "hangs") for case in RANKS[4:6]),
    *((case, Model(never, alone="on"), "unnoticed") for case in RANKS[4:6]),
    *((case, Model(together, busy=True), "busy") for case in (*RANKS[:4], "idle")),
)


@pytest.mark.parametrize(("case", "model", "outcome"), FAULTS)
def test_ranks_that_do_not_agree_fail(
    monkeypatch: pytest.MonkeyPatch, case: str, model: Model, outcome: str
) -> None:
    assert verdict(monkeypatch, case, model) == outcome


def test_what_is_never_released_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_SLACK", 0.1)
    assert verdict(monkeypatch, "acknowledged-on-one", Model(never)) == "for ever"


def test_without_an_acknowledgement_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(Model):
        def ask(self, rank: int, what: str, **more: Any) -> Any:
            return False if what == "acked" else super().ask(rank, what, **more)

    monkeypatch.setattr(ranks, "Crew", Deaf(together))
    assert ranks.together("acknowledged-on-one", "mooncake")["state"] == "not-run"


DRIVER = """
import sys, time
from pdguard.exercise.engine import crew
class Rank:
    def __init__(self, group, backend): pass
    def tick(self): time.sleep(60)
    def open(self, room, how): return {"states": {}}
crew._Rank, crew._group, crew.BOUND = Rank, lambda *_: None, 0.3
with crew.Crew("none", 1.0) as all_of_them:
    all_of_them.each("open", 1)
    print(*all_of_them._children.values(), flush=True)
    if sys.argv[1] == "hang":
        try:
            all_of_them.round()
        except crew.Judged as judged:
            print(judged.verdict["outcome"], flush=True)
    else:
        time.sleep(60)
"""


def gone(children: list[int]) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if not any(Path(f"/proc/{child}/stat").exists() and alive(child) for child in children):
            return True
        time.sleep(0.02)
    return False


def alive(child: int) -> bool:
    try:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["hang", "killed"])
def test_no_rank_outlives_its_driver(how: str) -> None:
    """A rank that never answers is told of, and ended; ranks whose driver is killed end by themselves."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, how], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        children = [int(word) for word in driver.stdout.readline().split()]
        assert len(children) == crew.RANKS
        if how == "hang":
            assert driver.stdout.readline() == "hangs\n"
            assert driver.wait(5) == 0
        else:
            assert all(alive(child) for child in children)
            os.kill(driver.pid, signal.SIGKILL)
        assert gone(children)
    finally:
        driver.kill()
        driver.communicate()


def test_a_machine_without_loopback_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refused(*_arguments: Any) -> bytes:
        raise OSError(19, "No such device")

    monkeypatch.setattr(fcntl, "ioctl", refused)
    with pytest.raises(boot.Unavailable, match="loopback"):
        crew._loopback()
