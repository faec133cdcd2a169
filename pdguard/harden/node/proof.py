"""Whether the changed files compile, and the package imports, in the engine's own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings

from pdguard.harden.node.entry import Refused, read

NO_IMPORT = "a module does not import"

_CHILD = r"""
import importlib, importlib.util, json, os, sys, warnings
request = json.loads(sys.stdin.buffer.read())
out = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0), os.dup2(null, 1), os.dup2(null, 2)
def say(*row):
    out.write(json.dumps(row) + "\n")
    out.flush()
say("version", "%d.%d.%d" % sys.version_info[:3])
warnings.simplefilter("ignore")
root = request["root"]
try:
    for path in request["files"]:
        say("compile", path)
        with open(root + "/" + path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    if request["imports"]:
        name = os.path.basename(root)
        say("import", name)
        def ours(places):
            return any(os.path.realpath(place) == root for place in places or ())
        spec = importlib.util.find_spec(name)
        if spec is None or not ours(spec.submodule_search_locations):
            sys.path.insert(0, os.path.dirname(root))
        importlib.import_module(name)
        if not ours(sys.modules[name].__path__):
            raise LookupError("another package of this name comes first")
        for name in request["imports"]:
            say("import", name)
            try:
                importlib.import_module(name)
            except BaseException as error:
                if not request["all"]:
                    raise
                say("lost", name, type(error).__name__)
    say("done")
except BaseException as error:
    say("error", type(error).__name__)
out.flush()
os._exit(0)
"""


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {**found, "CUDA_VISIBLE_DEVICES": "", "SGLANG_USE_CPU_ENGINE": "1"}


def lost(root: str, python: str, imports: list[str], seconds: float) -> dict[str, str]:
    """Modules that do not import as the package is now, with the class of the error.

    A machine without an accelerator, or without a library that only the running engine finds, is no fault of
    the change: what does not import before it proves nothing after it.
    """
    request: dict[str, object] = {"root": root, "files": [], "imports": imports, "all": True}
    rows = _run(python, request, seconds)
    found = {row[1]: row[2] for row in rows if row[0] == "lost"}
    if rows[-1][0] != "done":
        why = rows[-1][1] if rows[-1][0] == "error" else "the interpreter died"
        tried = [row[1] for row in rows if row[0] == "import"]
        found.update({name: why for name in imports if name not in tried or name == tried[-1]})
    return found


def _run(python: str, request: dict[str, object], seconds: float) -> list[list[str]]:
    """Lines of the child. Refused where it does not run, or not in time."""
    try:
        done = subprocess.run(
            [python, "-I", "-B", "-c", _CHILD],
            input=json.dumps(request).encode("ascii"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            timeout=seconds,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired as error:
        raise Refused("the interpreter did not finish", python, f"{seconds:g} s", "longer") from error
    except (OSError, ValueError) as error:
        todo = "Name the interpreter of the engine"
        raise Refused(
            "the interpreter cannot be run", python, "a Python", type(error).__name__, todo
        ) from error
    rows: list[list[str]] = []
    for line in done.stdout.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    if not rows or rows[0][0] != "version":
        found = f"exit code {done.returncode}"
        raise Refused("the interpreter does not run", python, "a Python 3", found, "Name that of the engine")
    return rows


def runs(python: str, seconds: float) -> str:
    """The version of an interpreter. Refused where it is none."""
    if not python.startswith("/") or not os.path.isfile(python):
        raise Refused("there is no such interpreter", python, "an absolute path of a Python", "nothing")
    if not os.access(python, os.X_OK):
        raise Refused("the interpreter may not be run", python, "an executable file")
    rows = _run(python, {"root": "/", "files": [], "imports": [], "all": False}, min(seconds, 30.0))
    return str(rows[0][1])


def prove(root: str, python: str, files: list[str], imports: list[str], seconds: float) -> None:
    """Refused where a file does not compile or a module does not import; `python` "" is this interpreter."""
    end = time.monotonic() + seconds
    if not python:
        for path in files:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile(read(root + "/" + path), path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                found = type(error).__name__
                raise Refused("a changed file does not compile", path, "Python " + mine(), found) from error
        return
    request: dict[str, object] = {"root": root, "files": files, "imports": imports, "all": False}
    rows = _run(python, request, max(1.0, end - time.monotonic()))
    last = rows[-1]
    if last[0] == "done":
        return
    at = rows[-2] if last[0] == "error" else last
    found = last[1] if last[0] == "error" else "the interpreter died"
    if at[0] == "compile":
        raise Refused("a changed file does not compile", at[1], "Python " + rows[0][1], found)
    raise Refused(NO_IMPORT, at[1], "an import without an error", found)


def mine() -> str:
    """The version of the interpreter that runs this."""
    return ".".join(str(n) for n in sys.version_info[:3])
