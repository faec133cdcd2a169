"""Contents of source files by hash: each asked for once in a whole fleet, and kept for the next run."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import tempfile
import tokenize
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from pdguard.errors import TransportError
from pdguard.transport.interface import Json

MAX_SOURCE = 4 * 1024 * 1024
MAX_HOLDERS = 8
ROUNDS = 4
PARALLEL = 8


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Where contents are kept between runs, or None where the environment names no place."""
    for base, below in ((environ.get("XDG_CACHE_HOME"), ""), (environ.get("HOME"), ".cache")):
        if base and Path(base).is_absolute():
            return Path(base) / below / "pdguard" / "contents"
    return None


@dataclass(slots=True)
class ContentStore:
    """Contents in memory and, below `folder`, on disk, where a content counts only if its hash is right."""

    folder: Path | None = None
    problem: str = ""
    _texts: dict[str, str | None] = field(default_factory=dict)

    def has(self, digest: str) -> bool:
        """Whether the content of that hash is here; looks on disk once."""
        if digest not in self._texts:
            data = self._load(digest)
            if data is not None:
                self._texts[digest] = _decode(data)
        return digest in self._texts

    def text(self, digest: str) -> str | None:
        """The text of that hash, or None where it is not here or is no text."""
        return self._texts[digest] if self.has(digest) else None

    def add(self, digest: str, data: bytes) -> bool:
        """Keep a content; False where it is not what its hash says."""
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        self._texts[digest] = _decode(data)
        try:
            self._save(digest, data)
        except OSError as error:  # a full disk or a read-only home costs the next run, not this one
            self.problem = f"contents are not kept for the next run ({type(error).__name__})"
        return True

    def _path(self, digest: str) -> Path | None:
        good = len(digest) == 64 and not set(digest) - set("0123456789abcdef")
        return self.folder / digest[:2] / f"{digest}.z" if self.folder is not None and good else None

    def _load(self, digest: str) -> bytes | None:
        path = self._path(digest)
        if path is None:
            return None
        try:
            with path.open("rb") as handle:
                data = unpack(handle.read(MAX_SOURCE))
        except OSError:
            return None
        return data if data is not None and hashlib.sha256(data).hexdigest() == digest else None

    def _save(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        if path is None:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(zlib.compress(data))
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def unpack(packed: bytes) -> bytes | None:
    """What zlib packed, if it is whole and no larger than a source file may be."""
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(packed, MAX_SOURCE + 1)
    except zlib.error:
        return None
    return data if reader.eof and len(data) <= MAX_SOURCE else None


def _decode(data: bytes) -> str | None:
    """The text of a Python file, by its own encoding line."""
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Holder:
    """An engine that runs a content: its node, process, and the file below the package."""

    node: str
    pid: int
    path: str


Ask = Callable[[str, list[Json]], Json]
"""Puts content requests to a node and gives the whole answer; may raise TransportError."""


def holders(engines: Iterable[tuple[str, int, Mapping[str, str]]]) -> dict[str, list[Holder]]:
    """Who holds each distinct content, from (node, pid, hash by path) of every engine."""
    found: dict[str, list[Holder]] = {}
    for node, pid, hashes in engines:
        for path, digest in hashes.items():
            known = found.setdefault(digest, [])
            if len(known) < MAX_HOLDERS:
                known.append(Holder(node, pid, path))
    return found


def fetch_contents(store: ContentStore, held: Mapping[str, Sequence[Holder]], ask: Ask) -> dict[str, str]:
    """Ask for each content that is not in the store, once; what one node cannot give is asked of the next.

    The result tells why for each content that nobody gave.
    """
    left = {digest: list(who) for digest, who in held.items() if not store.has(digest)}
    why = dict.fromkeys(left, "nobody was asked")
    with ThreadPoolExecutor(PARALLEL) as pool:
        for _ in range(ROUNDS):
            wanted: dict[str, list[tuple[str, Holder]]] = {}
            for digest, who in left.items():
                if who:
                    wanted.setdefault(who[0].node, []).append((digest, who[0]))
            if not wanted:
                break
            for answers in pool.map(lambda one: _ask(ask, *one), wanted.items()):
                for digest, data in answers.items():
                    if isinstance(data, bytes) and store.add(digest, data):
                        del left[digest], why[digest]
                    elif isinstance(data, bytes):
                        why[digest], left[digest] = "what came is not what was asked for", left[digest][1:]
                    else:
                        why[digest] = data
                        # A node that ran out of time or room has more to give, the others do not.
                        left[digest] = left[digest] if data == "time ran out" else left[digest][1:]
    return why


def _ask(ask: Ask, node: str, items: Sequence[tuple[str, Holder]]) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {digest: "the node's answer does not mention it" for digest, _ in items}
    try:
        answer = ask(node, [{"pid": h.pid, "path": h.path, "sha256": digest} for digest, h in items])
    except TransportError as error:
        return dict.fromkeys(found, error.what)
    rows = answer.get("contents") if isinstance(answer, Mapping) else None
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, list) or len(row) != 3 or row[0] not in found:
            continue
        digest, text, reason = row
        if isinstance(text, str):
            try:
                found[digest] = unpack(base64.b64decode(text, validate=True)) or b""
            except (binascii.Error, ValueError):
                found[digest] = "what came makes no sense"
        elif isinstance(reason, str):
            found[digest] = reason[:200]
    return found
