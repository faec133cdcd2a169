"""What `pdguard inspect` may be pointed at: a wheel, a package, a tree around one, or a running process."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pdguard.errors import InputError
from pdguard.fingerprint.match import Reader

MAX_FILE = 4 * 1024 * 1024
MARK = "srt/disaggregation"
"""A folder that every `sglang` package with prefill/decode disaggregation has."""

_VERSION = re.compile(
    r"""^\s*_{0,2}version_{0,2}\s*=.*?["']([0-9][0-9A-Za-z.+!_\-]{0,60})["']""", re.MULTILINE
)
_SKIP = frozenset(
    {"proc", "sys", "dev", "run", "tmp", "boot", "lost+found", "__pycache__", ".git", "node_modules"}
)
_DEPTH = 9


@dataclass(frozen=True, slots=True)
class Target:
    """One `sglang` package: what it is called here, the version that its files state, and its reader."""

    name: str
    version: str | None
    read: Reader


def open_target(text: str) -> Target:
    """The package that `text` names: a wheel, a folder, or a process id.

    Raises InputError where there is none, or more than one (each is then named).
    """
    path = Path(text)
    if text.isdigit() and not path.exists():
        return _of_process(int(text))
    if not path.exists():
        raise InputError(f"{text} does not exist", expected="a wheel, a folder or a process id")
    if path.is_file():
        return _of_wheel(path)
    found = sorted(set(_packages(path)))
    if not found:
        raise InputError(
            f"there is no sglang package in {text}", expected=f"a folder sglang with {MARK} in or below it"
        )
    if len(found) > 1:
        names = ", ".join(str(p.relative_to(path)) for p in found[:5])
        raise InputError(f"{text} holds {len(found)} sglang packages", found=names, todo="Name one of them.")
    return _of_folder(found[0], text)


def _of_folder(package: Path, name: str) -> Target:
    @functools.cache
    def read(file: str) -> tuple[str, str] | None:
        path = package / file
        try:
            if not path.is_file():
                return None
            data = path.read_bytes() if path.stat().st_size <= MAX_FILE else None
        except OSError as error:
            raise LookupError((error.strerror or "cannot be read").lower()) from error
        return _text(data)

    return Target(name, _version(read) or _metadata_version(package), read)


def _of_wheel(path: Path) -> Target:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise InputError(f"{path} is no wheel", expected="a wheel, a folder or a process id") from error
    sizes = {i.filename: i.file_size for i in archive.infolist()}
    if not any(n.startswith(f"sglang/{MARK}/") for n in sizes):
        archive.close()
        raise InputError(f"{path} holds no sglang package", expected=f"sglang/{MARK}/ in it")

    @functools.cache
    def read(file: str) -> tuple[str, str] | None:
        member = f"sglang/{file}"
        if member not in sizes:
            return None
        try:
            return _text(archive.read(member) if sizes[member] <= MAX_FILE else None)
        except (OSError, zipfile.BadZipFile, RuntimeError, zlib.error) as error:
            raise LookupError("it cannot be unpacked") from error

    return Target(str(path), _version(read) or _wheel_version(path.name), read)


def _of_process(pid: int) -> Target:
    """The package that a process has mapped, seen through its own root: the node script's rules, run here."""
    from pdguard._bundle import bundled
    from pdguard.facts.source import parse_source, tree_reader
    from pdguard.fingerprint.loader import load_fixes
    from pdguard.fingerprint.match import Matcher
    from pdguard.fingerprint.process_target import describe_pid

    watched = Matcher(load_fixes(bundled("remediations"))).watched()
    answer, texts = describe_pid(pid, watched)
    source = parse_source(answer, watched)
    if source.status != "found" or source.answer is None:
        raise InputError(f"the sglang package of process {pid} is not known", found=source.unread())
    version = source.answer.version or source.answer.dist_version or None
    return Target(f"process {pid}", version, tree_reader(source, texts.get))


def _packages(root: Path) -> Iterator[Path]:
    """Every `sglang` package at or below `root`; links are not followed."""
    if (root / MARK).is_dir():
        yield root
        return
    base = len(root.parts)
    for folder, names, _ in os.walk(root):
        here = Path(folder)
        if (here / MARK).is_dir():
            yield here
            names.clear()
            continue
        deep = len(here.parts) - base >= _DEPTH
        names[:] = [] if deep else [n for n in names if n not in _SKIP or len(here.parts) > base]


def _text(data: bytes | None) -> tuple[str, str]:
    if data is None:
        raise LookupError(f"it is longer than {MAX_FILE // (1024 * 1024)} MiB")
    try:
        return hashlib.sha256(data).hexdigest(), data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LookupError("it is not UTF-8") from error


def _version(read: Reader) -> str | None:
    for file in ("_version.py", "version.py"):
        try:
            found = read(file)
        except LookupError:
            continue
        match = _VERSION.search(found[1]) if found else None
        if match:
            return match[1]
    return None


def _metadata_version(package: Path) -> str | None:
    for folder in sorted(package.parent.glob("sglang-*.dist-info")):
        return folder.name.removeprefix("sglang-").removesuffix(".dist-info")
    return None


def _wheel_version(name: str) -> str | None:
    parts = name.split("-")
    return parts[1] if len(parts) > 2 and parts[0] == "sglang" else None
