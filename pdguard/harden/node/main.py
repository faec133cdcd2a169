"""One request in, one answer out."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pdguard.harden.node import check, plan, proof, survey, swap, undo
from pdguard.harden.node.entry import Refused, failure
from pdguard.harden.node.find import find
from pdguard.harden.node.places import checked, locate
from pdguard.harden.node.store import Store

SCHEMA = "pdguard.harden/1"
DEFAULT_SECONDS = 120.0


class Stop(Exception):
    """Somebody asked this process to end: what was begun is put back first."""


def _seconds(request: dict[str, Any]) -> float:
    value = request.get("seconds")
    return float(value) if isinstance(value, (int, float)) and 0 < value < 86400 else DEFAULT_SECONDS


def _survey(store: Store, root: str, request: dict[str, Any]) -> dict[str, Any]:
    listed = request.get("files")
    files = listed[: survey.MAX_FILES] if isinstance(listed, list) else []
    answer: dict[str, Any] = {"status": "found", **survey.about(root, store.root)}
    answer["files"] = [survey.file(store.root, path) for path in files]
    answer["state"] = survey.state(store)
    payload = request.get("payload")
    if isinstance(payload, str):
        answer["payload"] = os.path.isdir(store.root + "/" + checked(store.root, payload))
    if request.get("processes") is True:
        answer["processes"] = _processes(store, answer["state"], request)
    return answer


def _processes(store: Store, state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    newest = int(state.get("swapped_ns") or 0)
    return survey.processes(store.root, newest, str(request.get("proc") or "/proc"), 20.0)


def _verify(store: Store, _: str, request: dict[str, Any]) -> dict[str, Any]:
    answer = survey.verify(store)
    status = answer["state"]["status"]
    good = status == "hardened" and not answer["state"]["interrupted"]
    answer["status"] = "none" if status == "none" else "verified" if good else "differs"
    answer["processes"] = _processes(store, answer["state"], request)
    return answer


def _status(store: Store, _: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"status": "found", "state": survey.state(store)}


def _contents(store: Store, _: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"status": "found", **survey.contents(store, request.get("wanted"), request.get("files"))}


def _done(plan_: swap.Plan) -> dict[str, list[str]]:
    moves = [move for move in plan_.moves if not move.derived]
    return {
        "replaced": [m.path for m in moves if m.prior and m.after],
        "created": [m.path for m in moves if not m.prior],
        "removed": [m.path for m in moves if not m.after],
        "bytecode": [m.path for m in plan_.moves if m.derived],
    }


def _known(store: Store) -> bool:
    """Whether the old state was replaced."""
    found = store.state()
    return found is not None and survey.replaced(store.root, found)


def _apply(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    gone = _known(store)
    chosen, python = request.get("set"), request.get("python") or ""
    names = request.get("imports") or []
    if not isinstance(chosen, dict) or not isinstance(python, str) or not isinstance(names, list):
        raise Refused("the request makes no sense", "", "set, changes, python, imports")
    if not all(isinstance(n, str) and n.replace(".", "_").isidentifier() for n in names):
        raise Refused("the request makes no sense", "", "names of modules")
    wanted = plan.changes(store.root, request.get("changes"))
    if plan.unchanged(store.root, wanted, chosen, store.state()):
        return {"status": "unchanged"}
    todo, sources = plan.apply(store, wanted, chosen, python, gone)
    check.possible(store.root, todo)
    seconds = _seconds(request)
    version = proof.runs(python, seconds) if python else proof.mine()
    before = proof.lost(store.root, python, names, seconds) if python and names else {}
    imports = [name for name in names if name not in before] if python else []
    answer: dict[str, Any] = {
        "done": _done(todo),
        "python": {
            "path": python,
            "version": version,
            "compiled": sources,
            "imported": imports,
            "lost": [f"{name}: {why}" for name, why in sorted(before.items())],
        },
    }

    def prove() -> None:
        proof.prove(store.root, python, sources, imports, seconds)

    try:
        left = swap.execute(store, todo, prove)
    except swap.Undone as error:
        return {"status": "rolled-back" if error.swapping else "refused", "why": error.why}
    return {**answer, "status": "applied", "left": left}


def _rollback(store: Store, recovered: bool) -> dict[str, Any]:
    gone = _known(store)
    if store.state() is None:
        return {"status": "rolled-back" if recovered else "unchanged"}
    todo = plan.rollback(store, gone)
    check.possible(store.root, todo)
    try:
        left = swap.execute(store, todo, lambda: None)
    except swap.Undone as error:
        return {"status": "refused", "why": error.why}
    return {"status": "rolled-back", "done": _done(todo), "left": left}


def _writing(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    """An apply or a rollback, under the lock, after what an earlier run left is put right."""
    recovered = False
    try:
        check.lockable(store.root)
        try:
            store.lock()
            recovered = undo.recover(store)
            apply = request["do"] == "apply"
            answer = _apply(store, request) if apply else _rollback(store, recovered)
        finally:
            _leave(store)
    except (Refused, OSError) as error:
        answer = {"status": "refused", "why": failure(error)}
    except undo.Stuck as error:
        answer = {"status": "failed", "why": error.why[0], "troubles": error.why}
    except ValueError:
        todo = "Install the package again, or remove this folder: the originals in it are then lost"
        why = Refused(
            "the state makes no sense", store.folder, "a state or a journal", "something else", todo
        ).why
        answer = {"status": "refused", "why": why}
    return {**answer, "recovered": recovered, "state": survey.state(store)}


def _leave(store: Store) -> None:
    """Without a state and without anything to put right, nothing of ours stays."""
    for _ in range(2):
        try:
            if not store.owned():
                store.unmake()
            elif store.state() is None and not undo.unfinished(store):
                store.purge()
        except (OSError, ValueError):
            continue  # once more; then the next run tidies up
        break
    store.release()


READING = {"survey": _survey, "contents": _contents, "verify": _verify, "status": _status}
WRITING = ("apply", "rollback")


def _answer(request: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    do = request.get("do")
    if do == "find":
        return {"status": "found", **find(request)}
    root, real = locate(request.get("root"))
    result.update(root=root, real_root=real)
    store = Store(real)
    if do in WRITING:
        return _writing(store, request)
    if not isinstance(do, str) or do not in READING:
        raise Refused("there is no such operation", "", ", ".join((*READING, *WRITING)), str(do)[:40])
    return READING[do](store, root, request)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to a request; every failure is a status with its reason."""
    do = request.get("do")
    result: dict[str, Any] = {"schema": SCHEMA, "do": do if isinstance(do, str) else ""}
    try:
        found = _answer(request, result)
    except Refused as error:
        return {**result, "status": "refused", "why": error.why}
    except Exception as error:  # noqa: BLE001 - a request must not end in a traceback
        return {**result, "status": "failed", "why": failure(error)}
    return {**result, **found}


def _stop(number: int, frame: object) -> None:
    raise Stop


def run(request: bytes) -> None:
    """Answer the request on standard output."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
        undo.stoppable.append(number)
    sys.stdout.write(json.dumps(answer(json.loads(request))))
    sys.stdout.flush()
