"""Which router package a process runs, from the library it has mapped: the title and argv are often gone."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Optional, Set

from pdguard.node.procfs import Clock, inside, link, open_file, read

PACKAGES = {"sglang_router": "sglang-router", "smg": "smg"}
BINARIES = {"sgl-router": "sgl-router", "smg": "smg", "sgl-model-gateway": "sglang-router"}
MAX_LIBRARY = 512 * 1024 * 1024
_MAPPED = re.compile(
    rb"\s(/[^\n]*)/(sglang_router|smg)/[A-Za-z0-9_.\-]+\.so(?:[ ]\(deleted\))?$", re.MULTILINE
)
_LIBRARY = re.compile(r"(?:sglang_router|smg)_rs[A-Za-z0-9_.\-]*\.so")
_BUILT = re.compile(rb"(20\d\d-[01]\d-[0-3]\d) [0-2]\d:[0-5]\d:[0-5]\d UTC")
_VERSION = re.compile(r"[0-9A-Za-z.+!_\-]{1,64}")


def identify(proc: str, pid: int, program: str, clock: Clock) -> Dict[str, Any]:
    """Kind, package version and build date of a router, each where it can be told."""
    maps, _ = read("%s/%d/maps" % (proc, pid), 8 * 1024 * 1024)
    homes = {(m.group(1), m.group(2)) for m in _MAPPED.finditer(maps or b"")}
    if len(homes) != 1:
        return _binary(proc, pid, program, clock)
    home, package = (part.decode("utf-8", "surrogateescape") for part in homes.pop())
    found: Dict[str, Any] = {"kind": PACKAGES[package]}
    version = _installed(proc, pid, home, package)
    if version:
        found["version"] = version
    folder = inside(proc, pid, home + "/" + package)
    try:
        libraries = [n for n in os.listdir(folder) if _LIBRARY.fullmatch(n)]
    except OSError:
        libraries = []
    if len(libraries) == 1:
        found["built"] = built(folder + "/" + libraries[0], clock)
    return found


def _binary(proc: str, pid: int, program: str, clock: Clock) -> Dict[str, Any]:
    exe = link("%s/%d/exe" % (proc, pid))
    kind = BINARIES.get(os.path.basename(exe))
    if kind is not None:
        return {"kind": kind, "built": built(inside(proc, pid, exe), clock)}
    for prefix, name in (("sglang_router", "sglang-router"), ("sglang-router", "sglang-router")):
        if program.startswith(prefix):
            return {"kind": name}
    return {"kind": program if program == "sgl-router" else "other"}


def _installed(proc: str, pid: int, home: str, package: str) -> str:
    """Version in the distribution's metadata; the package's own version.py is known to be stale."""
    folder = inside(proc, pid, home)
    try:
        names = [n for n in os.listdir(folder) if n.endswith(".dist-info") and n.startswith(package + "-")]
    except OSError:
        return ""
    if len(names) != 1:
        return ""
    data, _ = read("%s/%s/METADATA" % (folder, names[0]), 65536)
    fields: Dict[str, str] = {}
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        if not line.strip():
            break
        name, _, value = line.partition(":")
        fields.setdefault(name.lower(), value.strip())
    if fields.get("name", "").replace("-", "_") != package:
        return ""
    version = fields.get("version", "")
    return version if _VERSION.fullmatch(version) else ""


def built(path: str, clock: Clock) -> Optional[str]:
    """The build date that the Rust library carries as text, where it carries exactly one."""
    dates: Set[str] = set()
    try:
        with os.fdopen(open_file(path), "rb") as handle:
            tail = b""
            for _ in range(MAX_LIBRARY // (4 * 1024 * 1024)):
                part = handle.read(4 * 1024 * 1024)
                if not part:
                    return dates.pop() if len(dates) == 1 else None
                block = tail + part
                dates.update(m.group(1).decode("ascii") for m in _BUILT.finditer(block))
                tail = block[-64:]
                if clock.over():
                    break
    except (OSError, ValueError):
        return None
    return None
