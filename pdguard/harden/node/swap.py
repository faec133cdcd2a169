"""From one whole set of files to another, or back to where it was: the journalled swap."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from pdguard.harden.node import steps
from pdguard.harden.node.entry import Entry, Refused, digest, failure, look, make, read
from pdguard.harden.node.store import State, Store
from pdguard.harden.node.undo import Move, beside, deaf, finish, folders, run_of, undo


class Plan(NamedTuple):
    """A run: what moves, folders to create and to remove, the state after it, and new bytes by hash."""

    moves: list[Move]
    create: list[str]
    drop: list[str]
    next: State | None
    data: dict[str, bytes]


class Undone(Exception):
    """The run ended where it began; `swapping` tells whether a file had been touched by then."""

    def __init__(self, why: dict[str, str], swapping: bool) -> None:
        super().__init__(why["what"])
        self.why = why
        self.swapping = swapping


def execute(store: Store, plan: Plan, proof: Callable[[], None]) -> list[str]:
    """Do it; what could only not be tidied up afterwards is returned. Raises Undone or Stuck."""
    record = {
        "from": run_of(store.state()),
        "next": run_of(plan.next),
        "moves": [
            [m.path, m.prior and m.prior._asdict(), m.after and m.after._asdict(), m.derived]
            for m in plan.moves
        ],
        "create": plan.create,
        "drop": plan.drop,
    }
    touched: set[str] = set()
    try:
        store.begin(pid=os.getpid(), **record)
        _stage(store, plan)
        store.say("swapping")
        _swap(store, plan, touched)
        store.say("proof")
        proof()
        store.say("commit")
        store.commit(plan.next and _dated(plan.next, plan.moves, store.state()))
    except BaseException as error:
        deaf()
        if run_of(store.state()) != run_of(plan.next):
            undo(store, plan.moves, plan.create, touched)
            raise Undone(failure(error), bool(touched)) from error
    deaf()
    return finish(store, plan.moves, plan.drop)


def _dated(state: State, moves: list[Move], old: State | None) -> State:
    """The state with the time of the swap: what began before it runs the code of before."""
    if old is not None and not moves:
        return state._replace(swapped_ns=old.swapped_ns)
    return state._replace(swapped_ns=time.time_ns())


def _stage(store: Store, plan: Plan) -> None:
    """Everything that takes room or may be forbidden, while no file has changed."""
    priors = {m.prior.sha: m.path for m in plan.moves if m.prior}
    for sha in plan.next.kept() if plan.next else ():
        if sha in priors:
            store.say("keep", sha=sha)
            data = read(store.root + "/" + priors[sha])
            if digest(data) != sha:
                raise Refused("a file changed meanwhile", priors[sha], sha, digest(data))
            store.keep(data)
    if os.path.isdir(store.at("originals")):
        steps.sync_folder(store.at("originals"))
    for folder in plan.create:
        store.say("mkdir", path=folder)
        above = os.stat(os.path.dirname(store.root + "/" + folder))
        steps.mkdir(store.root + "/" + folder, 0o755)
        steps.chmod(store.root + "/" + folder, above.st_mode & 0o777)
        if os.geteuid() == 0:
            steps.chown(store.root + "/" + folder, above.st_uid, above.st_gid)
        steps.sync_folder(os.path.dirname(store.root + "/" + folder))
    store.say("stage")
    for number, move in enumerate(plan.moves):
        if move.after is not None:
            make(beside(store, move.path, number, "tmp"), move.after, _bytes(store, plan, move.after))
        if move.prior is not None:
            _second_name(store.root + "/" + move.path, beside(store, move.path, number, "old"), move.prior)
    for folder in folders(store, plan.moves):
        steps.sync_folder(folder)


def _bytes(store: Store, plan: Plan, entry: Entry) -> bytes:
    if entry.link is not None:
        return b""
    data = plan.data.get(entry.sha)
    return store.original(entry.sha) if data is None else data


def _second_name(path: str, old: str, prior: Entry) -> None:
    """Keep the very file under another name: going back then needs no room, and its hard links last."""
    if os.path.lexists(old):
        steps.unlink(old)
    try:
        steps.link(path, old)
    except OSError:
        make(old, prior, read(path))


def _swap(store: Store, plan: Plan, touched: set[str]) -> None:
    for number, move in enumerate(plan.moves):
        path = store.root + "/" + move.path
        found = look(path)
        if found != move.prior:
            expected = move.prior.sha if move.prior else "no file"
            raise Refused("a file changed meanwhile", move.path, expected, found.sha if found else "no file")
        if move.after is not None:
            store.say("replace", path=move.path)
            touched.add(move.path)
            steps.replace(beside(store, move.path, number, "tmp"), path)
        elif move.prior is not None:
            store.say("remove", path=move.path)
            touched.add(move.path)
            steps.unlink(path)
    for folder in folders(store, plan.moves):
        steps.sync_folder(folder)
