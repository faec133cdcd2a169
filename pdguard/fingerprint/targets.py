"""What `pdguard inspect` may be pointed at: a wheel, a package, a tree around one, or a running process."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import stat
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdguard.errors import InputError
from pdguard.fingerprint.match import Reader
from pdguard.node import files
from pdguard.node.procfs import read as read_some
from pdguard.node.procfs import within
from pdguard.node.release import version_file

MAX_FILE = 4 * 1024 * 1024
_DIST_INFO = re.compile(r"sglang-([0-9][0-9A-Za-z.+!_]{0,60})\.dist-info/METADATA")
MARK = "srt/disaggregation"
"""A folder that every `sglang` package with prefill/decode disaggregation has."""

_NOT_FILES = frozenset({"proc", "sys", "dev"})
_DEPTH = 14


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
    if not text.strip():
        raise InputError("the target has no name", expected="a wheel, a folder or a process id")
    if text.isascii() and text.isdigit() and not path.exists():
        return _of_process(int(text))
    if not path.exists():
        raise InputError(f"{text} does not exist", expected="a wheel, a folder or a process id")
    if path.is_file():
        return _of_wheel(path)
    path = path.resolve()
    root = _root_of(path)
    found, cut = _packages(path, root)
    if not found:
        where = f"{text}, as far as {_DEPTH} folders down" if cut else text
        raise InputError(
            f"there is no sglang package in {where}", expected=f"a folder sglang with {MARK} in or below it"
        )
    if len(found) > 1:
        names = ", ".join(sorted(os.path.relpath(p, path) for p in found)[:5])
        raise InputError(f"{text} holds {len(found)} sglang packages", found=names, todo="Name one of them.")
    return _of_folder(found.pop(), root, text)


class _Tree:
    """A file system as the node script's rules look at one: `root` is / or the root of an unpacked image."""

    def __init__(self, root: str) -> None:
        self.root = "" if root == "/" else root

    def at(self, path: str) -> str:
        """Where to open a path of the tree from here; links are followed inside it."""
        return within(self.root, path)

    def back(self, path: str) -> str:
        """The reverse: the path as the tree itself would write it."""
        return path[len(self.root) :] or "/"

    def kind(self, path: str) -> str:
        """dir, file, none or error."""
        try:
            return "dir" if stat.S_ISDIR(os.stat(self.at(path)).st_mode) else "file"
        except (FileNotFoundError, NotADirectoryError):
            return "none"
        except (OSError, ValueError):
            return "error"


def _of_folder(package: Path, root: Path, name: str) -> Target:
    tree: Any = _Tree(str(root))
    watched = files.Watched(tree, str(package), "", "")
    base = tree.back(str(package))

    @functools.cache
    def read(file: str) -> tuple[str, str] | None:
        row = watched.read(file)
        if row is None:
            return None
        if isinstance(row, str):
            raise LookupError(row)  # noqa: TRY004 - a reason, not a wrong type
        data, info, _ = files.content(tree.at(f"{base}/{file}"))
        if data is not None and info is not None and _hidden(tree, f"{base}/{file}", data, info):
            raise LookupError("its .pyc is run unchecked and may hold other code")
        return _text(data)

    version, _ = version_file(tree, base)
    return Target(name, _stated(version, _metadata_version(package)), read)


def _hidden(tree: _Tree, path: str, data: bytes, info: os.stat_result) -> bool:
    """Whether bytecode of any Python would be run in place of the file without a look at it."""
    folder, _, name = path.rpartition("/")
    cache = tree.at(f"{folder}/__pycache__")
    try:
        names = [n for n in os.listdir(cache) if n.startswith(f"{name[:-3]}.") and n.endswith(".pyc")]
    except OSError:
        return False
    for one in names:
        head = read_some(f"{cache}/{one}", 16)[0]
        if files.judge(head or b"", data, info) == "unchecked":
            return True
    return False


def _stated(version: str, metadata: str | None) -> str | None:
    """The version file's word, unless it is the placeholder of a tree that was never built."""
    return metadata if not version or (version.startswith("0.0.0") and metadata) else version


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

    return Target(str(path), _wheel_version(archive, path.name), read)


def _of_process(pid: int) -> Target:
    """The package that a process has mapped, seen through its own root: the node script's rules, run here."""
    from pdguard._bundle import bundled
    from pdguard.facts.source import changed_since_start, parse_source, tree_reader
    from pdguard.fingerprint.loader import load_fixes
    from pdguard.fingerprint.match import Matcher
    from pdguard.fingerprint.process_target import describe_pid

    watched = Matcher(load_fixes(bundled("remediations"))).watched()
    answer, texts = describe_pid(pid, watched)
    source = parse_source(answer, watched)
    if source.status != "found" or source.answer is None:
        raise InputError(f"the sglang package of process {pid} is not known", found=source.unread())
    version = source.answer.version or source.answer.dist_version or None
    changed = changed_since_start(source)
    if changed:
        raise InputError(
            f"process {pid} does not run what is on the disk", found=changed, todo="Restart it, then inspect."
        )
    return Target(f"process {pid}", version, tree_reader(source, texts.get))


def _packages(top: Path, root: Path) -> tuple[set[Path], bool]:
    """Every `sglang` package at or below `top`, also behind links, and whether the search was cut."""
    if (top / MARK).is_dir():
        return {top}, False
    found: set[Path] = set()
    cut = False
    base = len(top.parts)
    for folder, names, links in os.walk(top):
        here = Path(folder)
        if (here / MARK).is_dir():
            found.add(here)
            names.clear()
            continue
        for name in (*names, *links):
            if name == "sglang" and (here / name).is_symlink():
                behind = Path(
                    within("" if str(root) == "/" else str(root), "/" + str((here / name).relative_to(root)))
                )
                if (behind / MARK).is_dir():
                    found.add(behind)
        if len(here.parts) - base >= _DEPTH:
            cut = cut or bool(names)
            names.clear()
        elif len(here.parts) == base:
            names[:] = [n for n in names if n not in _NOT_FILES]
    return found, cut


def _root_of(path: Path) -> Path:
    """The folder that absolute links are meant to start from: an unpacked image's root, or the machine's."""
    return path if (path / "usr").is_dir() and (path / "etc").is_dir() else Path("/")


def _text(data: bytes | None) -> tuple[str, str]:
    if data is None:
        raise LookupError(f"it is longer than {MAX_FILE // (1024 * 1024)} MiB")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return hashlib.sha256(data).hexdigest(), data.decode(encoding)
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise LookupError("it is not text in the encoding that it states") from error


def _metadata_version(package: Path) -> str | None:
    for folder in sorted(package.parent.glob("sglang-*.dist-info")):
        return folder.name.removeprefix("sglang-").removesuffix(".dist-info")
    return None


def _wheel_version(archive: zipfile.ZipFile, name: str) -> str | None:
    """What the wheel's own metadata folder says, or else its name."""
    for member in archive.namelist():
        match = _DIST_INFO.fullmatch(member)
        if match:
            return match[1]
    parts = name.split("-")
    return parts[1] if len(parts) > 2 and parts[0] == "sglang" else None
