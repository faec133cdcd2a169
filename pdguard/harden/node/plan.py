"""What a run would do: from the request, the state and the files as they are. Nothing is written here."""

from __future__ import annotations

import base64
import binascii
import os
import re
import uuid
import zlib
from typing import Any, NamedTuple

from pdguard.harden.node.entry import Entry, Refused, digest, look, shape
from pdguard.harden.node.places import checked
from pdguard.harden.node.store import File, State, Store
from pdguard.harden.node.swap import Plan
from pdguard.harden.node.undo import Move, bytecode

MAX_CHANGES = 500
MAX_BYTES = 16 * 1024 * 1024
_SHA = re.compile(r"[0-9a-f]{64}")


class Change(NamedTuple):
    """One path of a request: the hash that it must have (None: it must not exist), and its new bytes."""

    path: str
    before: str | None
    after: bytes | None
    sha: str | None


def changes(root: str, raw: Any) -> list[Change]:
    """The changes of a request. Refused where one makes no sense."""
    if not isinstance(raw, list) or not 0 < len(raw) <= MAX_CHANGES:
        raise Refused("the changes make no sense", "", f"1 to {MAX_CHANGES} of them")
    found: dict[str, Change] = {}
    left = MAX_BYTES
    for item in raw:
        if not isinstance(item, dict):
            raise Refused("the changes make no sense", "", "objects")
        path = checked(root, item.get("path"))
        before, packed, sha = item.get("before"), item.get("after"), item.get("after_sha")
        data = None if packed is None else _unpack(path, packed, left)
        left -= len(data or b"")
        hashes = [h for h in (before, sha) if h is not None]
        if path in found or any(not isinstance(h, str) or not _SHA.fullmatch(h) for h in hashes):
            raise Refused("a change makes no sense", path, "each path once, with SHA-256 hashes")
        if (data is None) != (sha is None) or (data is not None and digest(data) != sha):
            found_sha = digest(data) if data is not None else "no bytes"
            raise Refused("the new bytes do not match their hash", path, str(sha), found_sha)
        found[path] = Change(path, before, data, sha)
    for path in found:
        if any(other.startswith(path + "/") for other in found):
            raise Refused("a path is both a file and a folder", path)
    return list(found.values())


def _unpack(path: str, packed: Any, left: int) -> bytes:
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(packed, validate=True), left + 1)
        whole = reader.eof and not reader.unused_data
    except (binascii.Error, zlib.error, ValueError, TypeError) as error:
        raise Refused("the new bytes cannot be unpacked", path, "zlib in base64") from error
    if len(data) > left or not whole:
        raise Refused("the new bytes are too many, or cut off", path, f"at most {MAX_BYTES} in all")
    return data


def _sha(entry: Entry | None) -> str | None:
    return None if entry is None else entry.sha


def told(sha: str | None) -> str:
    """A hash for an answer."""
    return sha or "no file"


def unchanged(root: str, wanted: list[Change], chosen: dict[str, Any], state: State | None) -> bool:
    """Whether a request asks for what already is."""
    if any(_sha(look(root + "/" + c.path)) != c.sha for c in wanted):
        return False
    if state is None:
        return all(c.before == c.sha for c in wanted)
    afters = {c.path: c.sha for c in wanted}
    same = all(path in afters and afters[path] == file.after for path, file in state.files.items())
    return same and state.set == chosen


class _Planner:
    """Collects the moves of a run and the state that it leads to."""

    def __init__(self, store: Store, old: State | None, gone: bool) -> None:
        self.root = store.root
        self.gone = gone
        self.old: dict[str, File] = dict(old.files) if old else {}
        self.old_bytecode: dict[str, Entry] = dict(old.bytecode) if old else {}
        self.old_folders: list[str] = list(old.folders) if old else []
        self.found: dict[str, Entry | None] = {}
        if gone:  # what was replaced is no longer ours; what we created is, where it still is as we left it
            self.old = {p: f for p, f in self.old.items() if f.before is None and _sha(self.at(p)) == f.after}
            self.old_bytecode = {}
        self.moves: list[Move] = []
        self.files: dict[str, File] = {}
        self.bytecode: dict[str, Entry] = {}

    def at(self, path: str) -> Entry | None:
        """The file as it is, read once."""
        if path not in self.found:
            self.found[path] = look(self.root + "/" + path)
        return self.found[path]

    def change(self, change: Change) -> None:
        """A path of the new set."""
        now = self.at(change.path)
        if _sha(now) != change.before:
            todo = "Survey again: the plan was made for another file"
            raise Refused(
                "a file is not as the plan expects", change.path, told(change.before), told(_sha(now)), todo
            )
        file = self.old.get(change.path)
        if file is not None and _sha(now) not in (file.after, _sha(file.before)):
            raise _edited(change.path, file.after, now)
        original = now if file is None else file.before
        if change.sha == _sha(original):
            if file is not None:
                self.restore(change.path, original)
            return
        after: Entry | None = None
        if change.after is not None and change.sha is not None:
            after = self._new(change.path, now or original, change.after, change.sha)
        self.files[change.path] = File(original, change.sha)
        kept = _bytecode_of(change.path, self.old_bytecode) if file is not None else None
        if _sha(now) == change.sha and (now is None or now.link is None):
            self.bytecode.update(kept or {})
            return
        self.moves.append(Move(change.path, now, after))
        found = self._compiled(change.path, {})
        self.bytecode.update(found if kept is None else kept)

    def _new(self, path: str, like: Entry | None, data: bytes, sha: str) -> Entry:
        if like is not None:
            like = shape(self.root + "/" + path, like)
            return like._replace(sha=sha, size=len(data), mtime_ns=0, link=None)
        folder = self.root + "/" + path
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        info, own = os.stat(folder), os.geteuid()
        uid, gid = (info.st_uid, info.st_gid) if own == 0 else (own, os.getegid())
        return Entry(sha, len(data), 0o644, uid, gid, 0, {}, None)

    def restore(self, path: str, original: Entry | None) -> None:
        """A path goes back to where it was before its first change, and what is compiled from it too."""
        now = self.at(path)
        if now == original:
            return
        self.moves.append(Move(path, now, original))
        self._compiled(path, _bytecode_of(path, self.old_bytecode))

    def _compiled(self, path: str, after: dict[str, Entry]) -> dict[str, Entry]:
        """Moves for what is compiled from a file; what of it there is now."""
        now = {name: self.at(name) for name in bytecode(self.root, path)}
        for name in sorted({*now, *after}):
            if now.get(name) != after.get(name):
                self.moves.append(Move(name, now.get(name), after.get(name), True))
        return {name: entry for name, entry in now.items() if entry is not None}

    def done(self, state: State | None, data: dict[str, bytes]) -> Plan:
        """The plan."""
        create: set[str] = set()
        for move in self.moves:
            folder = os.path.dirname(move.path) if move.after else ""
            while folder and not os.path.isdir(self.root + "/" + folder):
                create.add(folder)
                folder = os.path.dirname(folder)
        drop = [f for f in self.old_folders if not any(p.startswith(f + "/") for p in self.files)]
        if state is not None:
            folders = sorted({*create, *self.old_folders} - set(drop))
            state = state._replace(files=self.files, bytecode=self.bytecode, folders=folders)
        return Plan(self.moves, sorted(create), drop, state, data)


def _edited(path: str, expected: str | None, now: Entry | None) -> Refused:
    todo = "Put it back as it was, or move it away"
    return Refused("a file was edited since it was hardened", path, told(expected), told(_sha(now)), todo)


def _bytecode_of(path: str, entries: dict[str, Entry]) -> dict[str, Entry]:
    folder, _, name = path.rpartition("/")
    lead = folder + "/" if folder else ""
    if not name.endswith(".py"):
        return {}
    stem = name[:-2]
    return {
        p: e
        for p, e in entries.items()
        if p == lead + stem + "pyc" or p.startswith(lead + "__pycache__/" + stem)
    }


def apply(
    store: Store, wanted: list[Change], chosen: dict[str, Any], python: str, gone: bool
) -> tuple[Plan, list[str]]:
    """The plan of an apply, and the sources to compile. `gone`: an installer replaced the old state."""
    planner = _Planner(store, store.state(), gone)
    for change in wanted:
        planner.change(change)
    named = {change.path for change in wanted}
    for path, file in planner.old.items():
        if path in named:
            continue
        now = planner.at(path)
        if _sha(now) != _sha(file.before) and not gone:
            todo = "Name every path of the old set, with its original where the new one leaves it alone"
            raise Refused("the request leaves out a file of the set before", path, "a change", "none", todo)
        planner.restore(path, file.before)
    state = State(uuid.uuid4().hex, chosen, 0, python, {}, {}, [])
    data = {change.sha: change.after for change in wanted if change.sha and change.after is not None}
    plan = planner.done(state, data)
    sources = [m.path for m in plan.moves if m.after and not m.derived and m.path.endswith(".py")]
    return plan, sources


def rollback(store: Store, gone: bool) -> Plan:
    """The plan of a rollback. Refused where a file was edited since, or an original is lost."""
    state = store.state()
    planner = _Planner(store, state, gone)
    for path, file in planner.old.items():
        now = planner.at(path)
        if now is not None and now.sha not in (file.after, _sha(file.before)):
            raise _edited(path, file.after, now)
        planner.restore(path, file.before)
    for move in planner.moves:
        if move.after is not None and move.after.link is None:
            store.original(move.after.sha)
    return planner.done(None, {})
