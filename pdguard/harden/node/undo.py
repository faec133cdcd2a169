"""The way back: what a run has touched is put back, and what it leaves behind is tidied up."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, NamedTuple

from pdguard.harden.node import steps
from pdguard.harden.node.entry import Entry, Refused, failure, look, make, parse
from pdguard.harden.node.store import ENDED, State, Store

_AGAIN = "Repair what stands in the way, then run --rollback again"


class Move(NamedTuple):
    """One path: as it is found, as it shall be. Bytecode is `derived`: nobody edits it."""

    path: str
    prior: Entry | None
    after: Entry | None
    derived: bool = False


class Stuck(Exception):
    """Files that could not be put back. The journal stays, so that a later `rollback` can go on."""

    def __init__(self, why: list[dict[str, str]]) -> None:
        super().__init__(why[0]["what"])
        self.why = why


def run_of(state: State | None) -> str | None:
    """The run that a state comes from."""
    return None if state is None else state.run


stoppable: list[signal.Signals] = []
"""Signals that `main` turns into an exception."""


def deaf() -> None:
    """From here on they are passed over: what follows is short and must not be cut."""
    while stoppable:
        signal.signal(stoppable.pop(), signal.SIG_IGN)


def beside(store: Store, path: str, number: int, end: str) -> str:
    """Where the new (tmp) or the present (old) file of a move waits, beside its place."""
    folder = os.path.dirname(store.root + "/" + path)
    return f"{folder}/.pdguard-{number}.{end}"


def folders(store: Store, moves: list[Move]) -> list[str]:
    """The folders in which names change."""
    found = {os.path.dirname(store.root + "/" + m.path) for m in moves}
    return sorted(f for f in found if os.path.isdir(f))


def undo(store: Store, moves: list[Move], created: list[str], touched: set[str]) -> None:
    """Put back every file that the run has touched.

    Raises Stuck: for a file that somebody edited before anything is put back, otherwise after all was tried.
    """
    todo = []
    troubles: list[dict[str, str]] = []
    for number, move in enumerate(moves):
        if move.path not in touched:
            continue
        try:
            found = look(store.root + "/" + move.path)
        except (OSError, Refused) as error:
            troubles.append(failure(error, move.path))
            continue
        if found == move.prior:
            continue
        known = [e.sha for e in (move.prior, move.after) if e is not None]
        if found is not None and not move.derived and found.sha not in known:
            expected = move.after.sha if move.after else "no file"
            todo_text = "Move it away, then run --rollback again"
            troubles.append(
                Refused("a file was edited meanwhile", move.path, expected, found.sha, todo_text).why
            )
        todo.append((number, move))
    if troubles:
        raise Stuck(troubles)
    for number, move in reversed(todo):
        try:
            _back(store, number, move)
        except (OSError, Refused) as error:
            troubles.append({**failure(error), "path": move.path, "todo": _AGAIN})
    if troubles:
        raise Stuck(troubles)
    try:
        _tidy(store, moves, created)
    except OSError as error:
        if _litter(store, moves, created):
            raise Stuck([{**failure(error, store.root), "todo": _AGAIN}]) from error
    with contextlib.suppress(OSError):  # the tree is as it was; the next run tidies up
        store.collect()
    store.end("undone")


def _back(store: Store, number: int, move: Move) -> None:
    path = store.root + "/" + move.path
    if move.prior is None:
        steps.unlink(path)
        return
    old = beside(store, move.path, number, "old")
    if look(old) != move.prior:
        old = beside(store, move.path, number, "tmp")
        make(old, move.prior, store.original(move.prior.sha))
    steps.replace(old, path)


def _litter(store: Store, moves: list[Move], created: list[str]) -> bool:
    temps = [beside(store, m.path, n, end) for n, m in enumerate(moves) for end in ("tmp", "old")]
    return any(os.path.lexists(path) for path in (*temps, *(store.root + "/" + c for c in created)))


def _tidy(store: Store, moves: list[Move], drop: list[str]) -> None:
    """Remove temporary files, bytecode that came meanwhile, and folders of ours that are empty."""
    known = {m.path for m in moves}
    for number, move in enumerate(moves):
        for end in ("tmp", "old"):
            temp = beside(store, move.path, number, end)
            if os.path.lexists(temp):
                steps.unlink(temp)
        for path in () if move.derived else bytecode(store.root, move.path):
            if path not in known:
                steps.unlink(store.root + "/" + path)
    for folder in folders(store, moves):
        steps.sync_folder(folder)
    for name in sorted(drop, key=len, reverse=True):
        for path in (store.root + "/" + name + "/__pycache__", store.root + "/" + name):
            if os.path.isdir(path) and not os.listdir(path):
                steps.rmdir(path)


def finish(store: Store, moves: list[Move], drop: list[str]) -> list[str]:
    """What remains after the commit: tried twice, and then left to the next run."""
    why: list[str] = []
    for _ in range(2):
        try:
            _tidy(store, moves, drop)
            store.collect()
            store.end("committed")
        except OSError as error:
            why = [failure(error)["found"]]
        else:
            return []
    return why


def bytecode(root: str, path: str) -> list[str]:
    """What Python may have compiled from a source file: paths below `root`."""
    if not path.endswith(".py"):
        return []
    folder, _, name = path.rpartition("/")
    stem = name[:-2]
    lead = folder + "/" if folder else ""
    found = [lead + stem + "pyc"] if os.path.lexists(root + "/" + lead + stem + "pyc") else []
    try:
        names = sorted(os.listdir(root + "/" + lead + "__pycache__"))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    return found + [lead + "__pycache__/" + n for n in names if n.startswith(stem) and n.endswith(".pyc")]


def unfinished(store: Store) -> bool:
    """Whether the journal shows a run that was cut off before its commit."""
    lines = store.journal()
    return bool(lines) and lines[-1]["do"] not in ENDED and run_of(store.state()) != lines[0]["next"]


def recover(store: Store) -> bool:
    """Finish what an earlier run left: back if it was cut off before its commit. Raises Stuck."""
    lines = store.journal()
    if not lines or lines[-1]["do"] in ENDED:
        return False
    deaf()
    record: dict[str, Any] = lines[0]
    moves = [
        Move(path, parse(prior), parse(after), derived) for path, prior, after, derived in record["moves"]
    ]
    if run_of(store.state()) == record["next"]:
        finish(store, moves, record["drop"])
        return False
    touched = {str(line["path"]) for line in lines if line["do"] in ("replace", "remove")}
    undo(store, moves, record["create"], touched)
    return True
