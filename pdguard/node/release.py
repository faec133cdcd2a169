"""What a package says about itself: version, distribution, RECORD, revision, and what is mounted over it."""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Dict, List, NamedTuple, Tuple

from pdguard.node import pyenv
from pdguard.node.procfs import read
from pdguard.node.seen import PACKAGE, Seen

RECORD_LIMIT = 16 * 1024 * 1024
MAX_MOUNTED = 64
_VERSION_LINE = re.compile(
    r"""(?:__version__ *= *version|__version__|version) *= *["']([0-9A-Za-z.+!_\-]{1,64})["']"""
)
_COMMIT = re.compile(r"""^__commit_id__ *= *commit_id *= *["']g?([0-9a-f]{7,40})["']""", re.MULTILINE)
_RECORD = re.compile(
    rb"^(%s/[^\",\n]{1,500}\.py),sha256=([A-Za-z0-9_\-]{43}),(\d{1,12})\r?$" % PACKAGE.encode(), re.MULTILINE
)
_VERSION = re.compile(r"[0-9A-Za-z.+!_\-]{1,64}")


class Dist(NamedTuple):
    """The distribution in a folder: why there is none, its folder, version, editable, revision."""

    why: str
    folder: str = ""
    version: str = ""
    editable: bool = False
    revision: str = ""


def version_file(seen: Seen, package: str) -> Tuple[str, str]:
    """(version, abbreviated revision) that the package's own files state."""
    version = revision = ""
    for name in ("_version.py", "version.py"):
        data, _ = read(seen.at(package + "/" + name), 65536)
        text = (data or b"").decode("utf-8", "replace")
        commit = _COMMIT.search(text)
        revision = revision or (commit.group(1) if commit else "")
        for line in text.splitlines():
            match = _VERSION_LINE.match(line)
            if match and not version:
                version = match.group(1)
    return version, revision


def distribution(seen: Seen, site: str) -> Dist:
    """The one distribution of the package's name in a folder."""
    try:
        names = os.listdir(seen.at(site))
    except (OSError, ValueError):
        return Dist("its folder cannot be listed")
    found = [n for n in names if n.startswith(PACKAGE + "-") and n.endswith(".dist-info")]
    if len(found) != 1:
        return Dist("%d distributions of this name" % len(found) if found else "no distribution of this name")
    folder = site + "/" + found[0]
    data, _ = read(seen.at(folder + "/METADATA"), 262144)
    fields: Dict[str, str] = {}
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        if not line.strip():
            break
        name, _, value = line.partition(":")
        fields.setdefault(name.lower(), value.strip())
    if fields.get("name") != PACKAGE:
        return Dist("its distribution makes no sense")
    origin, _ = read(seen.at(folder + "/direct_url.json"), 65536)
    editable, revision = pyenv.parse_direct_url(origin or b"")
    version = fields.get("version", "")
    return Dist("", folder, version if _VERSION.fullmatch(version) else "", editable, revision)


def parse_record(data: bytes) -> Dict[str, Tuple[str, int]]:
    """(sha256 in hex, size) of each Python file of the package in a RECORD, by its path below the package."""
    found: Dict[str, Tuple[str, int]] = {}
    for match in _RECORD.finditer(data):
        path, digest, size = match.groups()
        try:
            raw = base64.urlsafe_b64decode(digest + b"=")
        except (binascii.Error, ValueError):
            continue
        found[path.decode("utf-8", "replace")[len(PACKAGE) + 1 :]] = (raw.hex(), int(size))
    return found


def record(seen: Seen, dist: Dist) -> Tuple[Dict[str, Tuple[str, int]], str]:
    """The RECORD of a distribution, and why there is none."""
    if dist.why or dist.editable:
        return {}, dist.why or "installed in editable mode, which records no sources"
    data, why = read(seen.at(dist.folder + "/RECORD"), RECORD_LIMIT)
    if data is None:
        return {}, "RECORD: " + why
    found = parse_record(data)
    return found, "" if found else "RECORD lists no source file"


def revision(seen: Seen, package: str) -> str:
    """The revision of the checkout that the package lies in, or ""; read by hand, nothing is run."""
    for depth, below in enumerate((PACKAGE, "python/" + PACKAGE), 1):
        if not package.endswith("/" + below):
            continue
        top = package.rsplit("/", depth)[0]
        git = top + "/.git"
        if seen.kind(git) == "file":  # a work tree of its own, or a submodule
            data, _ = read(seen.at(git), 4096)
            match = re.match(rb"gitdir: ([^\0\n]{1,1000})", data or b"")
            path = match.group(1).decode("utf-8", "surrogateescape").strip() if match else ""
            git = path if path.startswith("/") else top + "/" + path
            if not path:
                continue
        if seen.kind(git) == "dir":
            return _head(seen, git)
    return ""


def _head(seen: Seen, git: str) -> str:
    found, ref = pyenv.parse_head(read(seen.at(git + "/HEAD"), 4096)[0] or b"")
    if found or not ref:
        return found
    common, _ = read(seen.at(git + "/commondir"), 4096)
    path = (common or b"").decode("utf-8", "replace").strip()
    shared = (path if path.startswith("/") else git + "/" + path) if path and "\0" not in path else git
    for folder in (git, shared):
        found, _ = pyenv.parse_head(read(seen.at(folder + "/" + ref), 4096)[0] or b"")
        if found:
            return found
    return pyenv.parse_packed(read(seen.at(shared + "/packed-refs"), RECORD_LIMIT)[0] or b"", ref)


def parse_mounts(data: bytes) -> List[Tuple[str, str, str]]:
    """(mount point, root within the file system, its type) of each line of a mountinfo file."""
    found: List[Tuple[str, str, str]] = []
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        words = line.split(" ")
        if "-" not in words[6:-1] or len(words) < 9:
            continue
        kind = words[words.index("-", 6) + 1]
        point, root = (
            re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), w) for w in words[3:5][::-1]
        )
        found.append((point, root, kind))
    return found


def mounts(seen: Seen, package: str) -> Tuple[str, List[str]]:
    """What covers the package (plain, overlay, bind, volume, unknown), and what is mounted below it."""
    data, _ = read("%s/%d/mountinfo" % (seen.proc, seen.pid), 4 * 1024 * 1024)
    cover, best = "unknown", -1
    below: List[str] = []
    for told, root, kind in parse_mounts(data or b""):
        point = seen.own(told)
        if point.startswith(package + "/"):
            below.append(point[len(package) + 1 :])
        elif (package + "/").startswith(point.rstrip("/") + "/") and len(point.rstrip("/")) >= best:
            best = len(point.rstrip("/"))
            if point == "/":
                cover = "overlay" if kind == "overlay" else "plain"
            else:
                cover = "bind" if root != "/" else "volume"
    return cover, sorted(set(below))[:MAX_MOUNTED]
