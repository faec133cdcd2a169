"""The control side of the node's harden script: typed requests and strictly parsed answers."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from pdguard.errors import TransportError
from pdguard.harden.answers import (
    Applied,
    Change,
    EngineFound,
    SetLabel,
    Survey,
    TreeState,
    Verified,
    Why,
)
from pdguard.harden.bundle import script
from pdguard.transport.interface import Json, Transport

SCHEMA = "pdguard.harden/1"
READ_SECONDS = 60.0
WRITE_SECONDS = 120.0
"""What a node may take beside the seconds that it is given to import the engine."""

MAX_CONTENT = 64 * 1024 * 1024
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Contents:
    status: Literal["found", "refused", "failed"]
    why: Why | None = None
    contents: dict[str, str] | None = None
    left: tuple[str, ...] = ()
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Status:
    status: Literal["found", "refused", "failed"]
    why: Why | None = None
    state: TreeState | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    status: Literal["found", "failed"]
    why: Why | None = None
    engines: tuple[EngineFound, ...] = ()


def survey(
    transport: Transport,
    root: str,
    files: Sequence[str],
    *,
    processes: bool = True,
    payload: str | None = None,
) -> Survey:
    """The package in or at `root`, and these of its files. `payload`: a folder to look for below it.

    Raises TransportError.
    """
    request: dict[str, Json] = {"files": list(files), "processes": processes, "payload": payload}
    return _ask(transport, "survey", root, request, Survey, READ_SECONDS)


def contents(
    transport: Transport, root: str, wanted: Sequence[str], *, files: Sequence[str] = ()
) -> dict[str, bytes]:
    """Bytes of kept originals or source files by SHA-256; what is not there is left out.

    `files`: paths below the package to look at first. Raises TransportError.
    """
    found: dict[str, bytes] = {}
    left: Sequence[str] = list(dict.fromkeys(wanted))
    while left:
        request: dict[str, Json] = {"wanted": list(left), "files": list(files)}
        answer = _ask(transport, "contents", root, request, _Contents, READ_SECONDS)
        if answer.status != "found":
            raise _refused(answer.why)
        new = {sha: _unpack(sha, text) for sha, text in (answer.contents or {}).items() if sha in left}
        found.update(new)
        left = [sha for sha in left if sha not in found]
        if not answer.cut or not new:
            break
    return found


def apply(
    transport: Transport,
    root: str,
    label: SetLabel,
    changes: Sequence[Change],
    *,
    python: str | None = None,
    imports: Sequence[str] = (),
    seconds: float = 120.0,
) -> Applied:
    """Swap the whole set or nothing. `changes` names every file of the set, and of the set before it.

    `python`: the engine's interpreter, in which the files are compiled and `imports` imported within
    `seconds`; without one they are only compiled by the node's own. Raises TransportError: what happened on
    the node is then unknown, and the next apply or rollback puts it right.
    """
    request = apply_request(label, changes, python=python, imports=imports, seconds=seconds)
    return _ask(transport, "apply", root, request, Applied, 2 * seconds + WRITE_SECONDS)


def apply_request(
    label: SetLabel,
    changes: Sequence[Change],
    *,
    python: str | None = None,
    imports: Sequence[str] = (),
    seconds: float = 120.0,
) -> dict[str, Json]:
    """What `apply` asks of the node, without the root."""
    return {
        "set": {"id": label.id, "base": label.base, "tool": label.tool, "fixes": list(label.fixes)},
        "changes": [_packed(change) for change in changes],
        "python": python,
        "imports": list(imports),
        "seconds": seconds,
    }


def rollback(transport: Transport, root: str) -> Applied:
    """Put every original back, also after an interrupted run. Raises TransportError, as `apply`."""
    return _ask(transport, "rollback", root, {}, Applied, WRITE_SECONDS)


def verify(transport: Transport, root: str) -> Verified:
    """Re-read every file of the applied set. Raises TransportError."""
    return _ask(transport, "verify", root, {}, Verified, READ_SECONDS)


def status(transport: Transport, root: str) -> TreeState:
    """What is applied. Raises TransportError, also where the root is no package."""
    answer = _ask(transport, "status", root, {}, _Status, READ_SECONDS)
    if answer.state is None:
        raise _refused(answer.why)
    return answer.state


def find(transport: Transport, engines: Sequence[Mapping[str, Json]]) -> tuple[EngineFound, ...]:
    """The package of each engine, which is given by its name, port and host. Raises TransportError."""
    answer = _ask(transport, "find", "", {"engines": list(engines)}, _Found, READ_SECONDS)
    if answer.status != "found":
        raise _refused(answer.why)
    return answer.engines


def _packed(change: Change) -> dict[str, Json]:
    after = change.after
    return {
        "path": change.path,
        "before": change.before,
        "after": None if after is None else base64.b64encode(zlib.compress(after, 6)).decode("ascii"),
        "after_sha": None if after is None else hashlib.sha256(after).hexdigest(),
    }


def _ask(
    transport: Transport,
    do: str,
    root: str,
    request: Mapping[str, Json],
    kind: type[_Answer],
    seconds: float,
) -> _Answer:
    answer: Any = transport.run_script(script(), {"do": do, "root": root, **request}, seconds)
    if not isinstance(answer, dict) or answer.get("schema") != SCHEMA or answer.get("do") != do:
        raise _nonsense(f"{SCHEMA}, {do}")
    try:
        return TypeAdapter(kind).validate_json(json.dumps(answer), strict=True)
    except (ValidationError, ValueError) as error:
        raise _nonsense(f"an answer to {do}") from error


def _unpack(sha: str, text: str) -> bytes:
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MAX_CONTENT)
    except (ValueError, zlib.error) as error:
        raise _nonsense("zlib in base64") from error
    if hashlib.sha256(data).hexdigest() != sha:
        raise _nonsense("bytes with the hash that was asked for")
    return data


def _nonsense(expected: str) -> TransportError:
    return TransportError("the node's answer makes no sense", expected=expected, found="something else")


def _refused(why: Why | None) -> TransportError:
    if why is None:
        return _nonsense("an answer with its reason")
    found = ": ".join(part for part in (why.path, why.found) if part)
    return TransportError(why.what, expected=why.expected, found=found, todo=why.todo)
