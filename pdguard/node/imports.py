"""Which folder a process imports `sglang` from: Python's path rules, followed in the process's own view.

Nothing of the engine is run. Libraries that the engine has mapped are hard evidence; the rules decide where
there are none, and where something that would come first cannot be known the answer is `unknown`.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Set

from pdguard.node import pyenv
from pdguard.node.procfs import link, read
from pdguard.node.seen import PACKAGE, Mapped, Seen

MAX_ENTRIES = 256
_INITS = ("__init__.py", "__init__.pyc")


class Entry(NamedTuple):
    """A place on the module path in order: a folder, the package itself (a finder), or a doubt."""

    kind: str
    via: str
    path: str
    site: str = ""


class Origin(NamedTuple):
    """Where the package is: status (found, ambiguous, unknown), and the folder as it is opened from here."""

    status: str
    why: str
    path: str = ""
    kind: str = ""
    via: str = ""
    site: str = ""
    confirmed: bool = False


def origin(
    seen: Seen, argv: List[str], env: Optional[Dict[str, str]], pids: List[int], maps: Mapped
) -> Origin:
    """Where the process (the first of `pids`, the others are below it) imports the package from."""
    entries = _entries(seen, argv, env, maps, _folders(seen, pids))
    by_rules = _first(seen, entries[:MAX_ENTRIES])
    real: Dict[str, str] = {}
    for path in maps.packages:
        real.setdefault(seen.at(path), path)
    if len(real) > 1:
        return Origin("ambiguous", "its processes have mapped libraries of %d packages" % len(real))
    if not real:
        return by_rules
    path = next(iter(real))
    if by_rules.path == path:
        return by_rules._replace(confirmed=True)
    for entry in entries:  # the rules do not lead there, but the folder may still be known by name
        if entry.kind != "doubt" and seen.at(_package(entry)) == path:
            return Origin("found", "", path, _KINDS[entry.via], entry.via, entry.site, True)
    parent = os.path.dirname(real[path])
    installed = os.path.basename(parent) in ("site-packages", "dist-packages")
    kind = "site-packages" if installed else "other"
    return Origin("found", "", path, kind, "mapped libraries", parent if installed else "", True)


_KINDS = {
    "first": "other",
    "PYTHONPATH": "pythonpath",
    "site-packages": "site-packages",
    ".pth": "editable",
    "finder": "editable",
}


def _package(entry: Entry) -> str:
    return entry.path if entry.kind == "package" else entry.path + "/" + PACKAGE


def _first(seen: Seen, entries: List[Entry]) -> Origin:
    namespace = False
    for entry in entries:
        if entry.kind == "doubt":
            return Origin("unknown", entry.path)
        path = _package(entry)
        what = seen.kind(path)
        if what == "error" or (what == "none" and seen.kind(entry.path) == "error"):
            return Origin("unknown", "a folder on its module path cannot be read (%s)" % entry.via)
        if what == "dir":
            if any(seen.kind(path + "/" + name) == "file" for name in _INITS):
                return Origin("found", "", seen.at(path), _KINDS[entry.via], entry.via, entry.site)
            namespace = True
        elif what == "none" and seen.kind(path + ".py") == "file":
            return Origin("unknown", "a file called %s.py stands before any package" % PACKAGE)
        elif what == "none" and entry.via == "PYTHONPATH" and seen.kind(entry.path) == "file":
            return Origin("unknown", "PYTHONPATH names an archive, which is not looked into")
    if namespace:
        return Origin("unknown", "only a folder without __init__.py was found")
    return Origin("unknown", "no package was found on its module path")


def _folders(seen: Seen, pids: List[int]) -> Set[str]:
    """Current folders of the processes; they agree unless one of them has changed it since."""
    return {seen.own(link("%s/%d/cwd" % (seen.proc, pid))) for pid in pids} - {""}


def _entries(
    seen: Seen, argv: List[str], env: Optional[Dict[str, str]], maps: Mapped, folders: Set[str]
) -> List[Entry]:
    run = pyenv.launch(argv)
    if run is None:
        return [Entry("doubt", "", "the argument list of the process is not that of a Python")]
    ignores = bool(set(run.flags) & set("IE"))
    known: Dict[str, str] = {} if env is None else env
    safe = "I" in run.flags or "P" in run.flags or (not ignores and bool(known.get("PYTHONSAFEPATH")))
    found: List[Entry] = [] if safe else _start(seen, run, folders)
    if not ignores:
        if env is None:
            return [*found, Entry("doubt", "", "its environment cannot be read, so PYTHONPATH is not known")]
        for part in known.get("PYTHONPATH", "").split(":") if known.get("PYTHONPATH") else ():
            if not part.startswith("/") and len(folders) > 1:
                found.append(Entry("doubt", "", "PYTHONPATH is relative and the current folder has changed"))
            found.append(Entry("folder", "PYTHONPATH", part or seen.cwd))
    return [*found, *_installed(seen, argv[0], run, env, maps)]


def _start(seen: Seen, run: pyenv.Launch, folders: Set[str]) -> List[Entry]:
    """The folder of the script, or the current one."""
    if run.mode == "script":
        script = seen.back(seen.at(run.target))
        path = script if seen.kind(script) == "dir" else os.path.dirname(script)
        return [Entry("folder", "first", path)]
    if len(folders) > 1 and any(seen.kind(f + "/" + PACKAGE) != "none" for f in folders):
        return [Entry("doubt", "", "the current folder has changed, and one of them holds the package")]
    return [Entry("folder", "first", seen.cwd)] if seen.cwd else []


def _executable(seen: Seen, name: str, env: Optional[Dict[str, str]]) -> str:
    """The interpreter as it was called: a virtual environment is told by that path, links not followed."""
    if "/" in name:
        return name if name.startswith("/") else seen.cwd + "/" + name
    for folder in (env or {}).get("PATH", "").split(":"):
        path = (folder or seen.cwd) + "/" + name
        if path.startswith("/") and seen.kind(path) == "file":
            return path
    return seen.exe


def _installed(
    seen: Seen, name: str, run: pyenv.Launch, env: Optional[Dict[str, str]], maps: Mapped
) -> List[Entry]:
    """Site folders with what their .pth files add, then the finders."""
    called = _executable(seen, name, env)
    if seen.exe and called and seen.back(seen.at(called)) != seen.exe:
        return [Entry("doubt", "", "its Python is not the one that its argument list names")]
    config: Dict[str, str] = {}
    prefix = ""
    for folder in (os.path.dirname(called), os.path.dirname(os.path.dirname(called))):
        data, _ = read(seen.at(folder + "/pyvenv.cfg"), pyenv.MAX_TEXT)
        if data is not None:
            config, prefix = pyenv.parse_pyvenv(data), folder
            break
    version = (
        pyenv.minor(os.path.basename(seen.exe))
        or maps.version
        or pyenv.minor(config.get("version") or config.get("version_info") or "")
    )
    base = maps.base or os.path.dirname(os.path.dirname(seen.exe))
    base = (env or {}).get("PYTHONHOME", "").split(":")[0] or base if not set(run.flags) & set("IE") else base
    if not version or not base:
        return [Entry("doubt", "", "the version of its Python could not be told")]
    if "S" in run.flags:
        return []
    shared = not prefix or config.get("include-system-site-packages", "").lower() == "true"
    folders = pyenv.sites(prefix, version) if prefix else []
    if shared:
        folders += [*_user(seen, run, env, version), *pyenv.sites(base, version)]
    return _with_pth(seen, folders)


def _user(seen: Seen, run: pyenv.Launch, env: Optional[Dict[str, str]], version: str) -> List[str]:
    if set(run.flags) & set("Is") or (env or {}).get("PYTHONNOUSERSITE"):
        return []
    home = (env or {}).get("HOME", "")
    if not home:
        status, _ = read("%s/%d/status" % (seen.proc, seen.pid), 65536)
        uid = re.search(rb"^Uid:\s+(\d+)", status or b"", re.MULTILINE)
        users, _ = read(seen.at("/etc/passwd"), pyenv.MAX_TEXT)
        rows = [line.split(":") for line in (users or b"").decode("utf-8", "replace").splitlines()]
        homes = [r[5] for r in rows if len(r) > 5 and uid and r[2] == uid.group(1).decode()]
        home = homes[0] if homes else ""
    base = (env or {}).get("PYTHONUSERBASE") or home + "/.local"
    return [base + "/lib/python%s/site-packages" % version] if base.startswith("/") else []


def _with_pth(seen: Seen, folders: List[str]) -> List[Entry]:
    found: List[Entry] = []
    finders: List[Entry] = []
    done: Set[str] = set()
    for folder in folders:
        real = seen.at(folder)
        if real in done:
            continue
        done.add(real)
        try:
            names = sorted(n for n in os.listdir(real) if n.endswith(".pth") and not n.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):
            return [*found, Entry("doubt", "", "a site folder cannot be read"), *finders]
        found.append(Entry("folder", "site-packages", folder, folder))
        for name in names[:200]:
            data, _ = read(seen.at(folder + "/" + name), pyenv.MAX_TEXT)
            pth = pyenv.parse_pth(data or b"", PACKAGE)
            if data is None or pth.unsure:
                why = "cannot be read" if data is None else "runs code of its own for the package"
                return [Entry("doubt", "", "a .pth file %s" % why), *found]
            paths = [p if p.startswith("/") else folder + "/" + p for p in pth.folders]
            found.extend(Entry("folder", ".pth", p, folder) for p in paths)
            for finder in pth.finders:
                data, _ = read(seen.at(folder + "/" + finder + ".py"), pyenv.MAX_TEXT)
                mapping = pyenv.parse_mapping(data or b"")
                if mapping is None:
                    finders.append(Entry("doubt", "", "an editable finder makes no sense"))
                elif PACKAGE in mapping:
                    finders.append(Entry("package", "finder", mapping[PACKAGE], folder))
    return [*found, *finders]
