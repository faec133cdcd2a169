"""The rules by which a Python sets up its module path, as parsers over what its files say."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

MAX_TEXT = 1024 * 1024
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?d?")
_WITH_VALUE = "WX"
_MODES = "mc"
_FINDER = re.compile(r"import (__editable__\w+); *(\w+)\.install\(\)")
_VERSION = re.compile(r"(\d+)\.(\d+)")
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Launch(NamedTuple):
    """How an interpreter was started: its single-letter options, and what it was given to run."""

    flags: str
    mode: str
    target: str


def launch(argv: List[str]) -> Optional[Launch]:
    """The interpreter's own part of an argument list; None where that is not a Python's."""
    if not argv or not PYTHON.fullmatch(argv[0].rsplit("/", 1)[-1]):
        return None
    flags = ""
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word == "-" or not word.startswith("-"):
            return Launch(flags, "script" if word != "-" else "c", word)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs" and rest:
                rest.pop(0)
            continue
        for at, letter in enumerate(word[1:], 1):
            if letter in _MODES:
                target = word[at + 1 :] or (rest.pop(0) if rest else "")
                return Launch(flags, letter, target)
            if letter in _WITH_VALUE:
                if not word[at + 1 :] and rest:
                    rest.pop(0)
                break
            flags += letter
    return Launch(flags, "c", "")


def parse_pyvenv(data: bytes) -> Dict[str, str]:
    """The settings of a pyvenv.cfg; the first of two counts."""
    found: Dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found.setdefault(name.strip().lower(), value.strip())
    return found


class Pth(NamedTuple):
    """A .pth file: folders, editable finders, and whether other code in it names the package."""

    folders: List[str]
    finders: List[str]
    unsure: bool


def parse_pth(data: bytes, package: str) -> Pth:
    """What a .pth file adds to the path, in order."""
    folders: List[str] = []
    finders: List[str] = []
    unsure = False
    for line in data.decode("utf-8-sig", "replace").splitlines()[:4096]:
        text = line.strip()
        if not text or line.startswith("#"):
            continue
        if line.startswith(("import ", "import\t")):
            match = _FINDER.fullmatch(text)
            if match and match.group(1) == match.group(2):
                finders.append(match.group(1))
            elif package in text:
                unsure = True
        elif "\0" not in text:
            folders.append(line.rstrip())
    return Pth(folders, finders, unsure)


def parse_mapping(data: bytes) -> Optional[Dict[str, str]]:
    """MAPPING of a finder that setuptools wrote: folder by package name; None where it makes no sense."""
    try:
        tree = ast.parse(data[:MAX_TEXT])
        for node in tree.body:
            if not isinstance(node, (ast.AnnAssign, ast.Assign)) or node.value is None:
                continue
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            if any(isinstance(t, ast.Name) and t.id == "MAPPING" for t in targets):
                value = ast.literal_eval(node.value)
                good = isinstance(value, dict) and all(
                    isinstance(k, str) and isinstance(v, str) and "\0" not in v for k, v in value.items()
                )
                return value if good else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return None


def parse_head(data: bytes) -> Tuple[str, str]:
    """(revision, "") of a detached HEAD, ("", ref) of one on a branch, ("", "") of anything else."""
    text = data.decode("ascii", "replace").strip()
    if _HEX.fullmatch(text):
        return text, ""
    match = re.fullmatch(r"ref: *(refs/[A-Za-z0-9._/@+\-]{1,240})", text)
    if match is None or ".." in match.group(1):
        return "", ""
    return "", match.group(1)


def parse_packed(data: bytes, ref: str) -> str:
    """The revision of `ref` in a packed-refs file, or ""."""
    for line in data.decode("ascii", "replace").splitlines():
        words = line.split(" ")
        if len(words) == 2 and words[1].strip() == ref and _HEX.fullmatch(words[0]):
            return words[0]
    return ""


def parse_direct_url(data: bytes) -> Tuple[bool, str]:
    """(editable, revision) of a direct_url.json."""
    try:
        parsed: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False, ""
    if not isinstance(parsed, dict):
        return False, ""
    folder, vcs = parsed.get("dir_info"), parsed.get("vcs_info")
    revision = vcs.get("commit_id") if isinstance(vcs, dict) else ""
    good = isinstance(revision, str) and _HEX.fullmatch(revision) is not None
    return isinstance(folder, dict) and folder.get("editable") is True, str(revision) if good else ""


def minor(text: str) -> str:
    """The `3.11` in a version or in the name of an interpreter or library, or ""."""
    match = _VERSION.search(text)
    return "%s.%s" % match.groups() if match else ""


def sites(prefix: str, version: str) -> List[str]:
    """Folders that may hold installed packages below a prefix, Debian's own names included, in order."""
    names = ["lib/python%s/site-packages", "lib64/python%s/site-packages", "local/lib/python%s/dist-packages"]
    found = [prefix.rstrip("/") + "/" + name % version for name in names]
    return [*found, prefix.rstrip("/") + "/lib/python3/dist-packages"]


def lib_dynload(line: str) -> Tuple[str, str]:
    """(prefix, version) of the standard library that a mapped file belongs to, or ("", "")."""
    match = re.fullmatch(r"(/.*)/lib(?:64)?/python(\d+\.\d+)t?/lib-dynload/[^/]+\.so", line)
    return (match.group(1), match.group(2)) if match else ("", "")
