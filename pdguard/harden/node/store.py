"""The folder `.pdguard` of a package: lock, journal, originals and state."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from typing import Any, NamedTuple

from pdguard.harden.node import steps
from pdguard.harden.node.entry import Entry, Refused, digest, parse, read

FOLDER = ".pdguard"
STATE_SCHEMA = "pdguard.harden.state/1"
ENDED = ("committed", "undone")
_SHA = re.compile(r"[0-9a-f]{64}")


class File(NamedTuple):
    """One path of an applied set: how it was before its first change, and the hash that it has now."""

    before: Entry | None
    after: str | None


class State(NamedTuple):
    """What is applied."""

    run: str
    set: dict[str, Any]
    swapped_ns: int
    python: str
    files: dict[str, File]
    bytecode: dict[str, Entry]
    folders: list[str]

    def text(self) -> dict[str, Any]:
        """For state.json."""
        raw: dict[str, Any] = self._asdict()
        raw["schema"] = STATE_SCHEMA
        raw["files"] = {
            path: {"before": file.before and file.before._asdict(), "after": file.after}
            for path, file in self.files.items()
        }
        raw["bytecode"] = {path: entry._asdict() for path, entry in self.bytecode.items()}
        return raw

    def kept(self) -> list[str]:
        """Hashes of the originals that it needs."""
        entries = [f.before for f in self.files.values() if f.before] + list(self.bytecode.values())
        return sorted({entry.sha for entry in entries})


def parse_state(raw: Any) -> State:
    """ValueError where it makes no sense."""
    try:
        if raw["schema"] != STATE_SCHEMA:
            raise ValueError
        files = {p: File(parse(f["before"]), f["after"]) for p, f in raw["files"].items()}
        found = {p: parse(e) for p, e in raw["bytecode"].items()}
        bytecode = {p: e for p, e in found.items() if e is not None}
        state = State(
            str(raw["run"]),
            dict(raw["set"]),
            int(raw["swapped_ns"]),
            str(raw["python"]),
            files,
            bytecode,
            [str(f) for f in raw["folders"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError from error
    for path in (*state.files, *state.bytecode, *state.folders):
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError
    return state


class Store:
    """The folder of one package."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = root + "/" + FOLDER
        self._lock = -1
        self._journal = -1

    def at(self, name: str) -> str:
        """A path in the folder."""
        return self.folder + "/" + name

    def lock(self) -> None:
        """Take the lock or be refused at once."""
        for _ in range(8):
            try:
                if not os.path.lexists(self.folder):
                    steps.mkdir(self.folder, 0o755)
                elif not stat.S_ISDIR(os.lstat(self.folder).st_mode):
                    raise Refused("the state folder is not a folder", self.folder)
                handle = steps.reopen(self.at("lock"), os.O_RDWR)
            except (FileExistsError, FileNotFoundError):  # another run begins or ends
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self.at("lock")), os.fstat(handle)):
                    self._lock = handle
                    os.ftruncate(handle, 0)
                    steps.write(handle, b"%d\n" % os.getpid())
                    return
            except BlockingIOError as error:
                pid = os.read(handle, 20).decode("ascii", "replace").strip()
                os.close(handle)
                found = "pid " + pid if pid.isdigit() else "a process that has just begun"
                raise Refused("another run holds the lock", self.folder, "no other run", found) from error
            except FileNotFoundError:
                pass
            os.close(handle)
        raise Refused("the lock could not be taken", self.folder, todo="Try again")

    def owned(self) -> bool:
        """Whether this run holds the lock."""
        return self._lock >= 0

    def unmake(self) -> None:
        """Remove the folder where it is empty: a run that was refused leaves nothing."""
        if os.path.isdir(self.folder) and not _names(self.folder):
            steps.rmdir(self.folder)

    def release(self) -> None:
        """Let go of the lock."""
        for handle in (self._journal, self._lock):
            if handle >= 0:
                os.close(handle)
        self._journal = self._lock = -1

    def holder(self) -> int | None:
        """The process that holds the lock, without touching it."""
        try:
            inode = os.stat(self.at("lock")).st_ino
            with open("/proc/locks", encoding="ascii", errors="replace") as file:
                rows = [line.split() for line in file]
        except OSError:
            return None
        for row in rows:
            if len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(inode):
                return int(row[4]) if row[4].isdigit() else 0
        return None

    def state(self) -> State | None:
        """What is applied; ValueError where it makes no sense."""
        try:
            data = read(self.at("state.json"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return parse_state(json.loads(data))

    def commit(self, state: State | None) -> None:
        """Make `state` the one that counts. This is the one moment at which a run is done."""
        if state is None:
            steps.unlink(self.at("state.json"))
        else:
            temp = self.at("state.json.tmp")
            self._write(temp, json.dumps(state.text(), sort_keys=True).encode("ascii"), 0o644)
            steps.replace(temp, self.at("state.json"))
        steps.sync_folder(self.folder)

    def _write(self, path: str, data: bytes, mode: int) -> None:
        if os.path.lexists(path):
            steps.unlink(path)
        handle = steps.create(path, mode)
        try:
            steps.write(handle, data)
            steps.sync(handle)
        finally:
            os.close(handle)

    def journal(self) -> list[dict[str, Any]]:
        """The whole lines of the last run; [] where it had not even begun."""
        try:
            data = read(self.at("journal.jsonl"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found: list[dict[str, Any]] = []
        for line in data.split(b"\n")[:-1]:
            try:
                record = json.loads(line)
            except ValueError:  # torn when a run was killed
                continue
            if isinstance(record, dict):
                found.append(record)
        return found if found and found[0].get("do") == "begin" else []

    def begin(self, **record: Any) -> None:
        """A new journal with its first line."""
        self._journal = steps.reopen(self.at("journal.jsonl"), os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        self.say("begin", **record)
        steps.sync_folder(self.folder)

    def say(self, do: str, **record: Any) -> None:
        """A line of the journal, on the disk before this returns."""
        if self._journal < 0:
            self._journal = steps.reopen(self.at("journal.jsonl"), os.O_WRONLY | os.O_APPEND)
            steps.write(self._journal, b"\n")  # the last line may be torn
        steps.write(self._journal, json.dumps({"do": do, **record}).encode("ascii") + b"\n")
        steps.sync(self._journal)

    def keep(self, data: bytes) -> None:
        """Keep an original."""
        if not os.path.isdir(self.at("originals")):
            steps.mkdir(self.at("originals"), 0o700)
        path = self.at("originals/" + digest(data))
        if os.path.lexists(path) and digest(read(path)) == digest(data):
            return
        self._write(path + ".tmp", data, 0o600)
        if digest(read(path + ".tmp")) != digest(data):
            raise Refused("a copy differs from its original", path)
        steps.replace(path + ".tmp", path)

    def original(self, sha: str) -> bytes:
        """An original; Refused where it is lost or damaged."""
        path = self.at("originals/" + sha)
        try:
            data = read(path)
        except FileNotFoundError:
            data = b""
        if not _SHA.fullmatch(sha) or digest(data) != sha:
            raise Refused("a kept original is lost", path, sha, digest(data), "Install the package again")
        return data

    def collect(self) -> None:
        """Remove what the state does not need."""
        state = self.state()
        wanted = state.kept() if state else []
        for name in _names(self.at("originals")):
            if name not in wanted:
                steps.unlink(self.at("originals/" + name))
        if os.path.lexists(self.at("state.json.tmp")):
            steps.unlink(self.at("state.json.tmp"))

    def end(self, word: str) -> None:
        """Mark the run as ended; where not even a line can be written, the journal goes.

        Where that fails too, the next run looks through the files once more and finds them in order.
        """
        try:
            self.say(word)
        except OSError:
            with contextlib.suppress(OSError):
                steps.unlink(self.at("journal.jsonl"))

    def purge(self) -> None:
        """Remove the folder; whatever is in it that is not ours stays."""
        self.collect()
        for name in ("originals", "journal.jsonl", "lock"):
            path = self.at(name)
            if os.path.lexists(path):
                (steps.rmdir if name == "originals" else steps.unlink)(path)
        if not _names(self.folder):
            steps.rmdir(self.folder)
            steps.sync_folder(self.root)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
