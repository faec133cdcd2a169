"""Packs the engine-side modules into one script: nothing of pdguard has to be installed beside the engine."""

from __future__ import annotations

import functools
from importlib import resources

MODULES = (
    *("boot", "stand", "doors", "results", "main", "wires", "library", "peers", "situations", "receiving"),
    *("refusals", "handshake", "holds", "drains", "transfers", "world", "restores", "retraction"),
    *("crew", "ranks", "serving", "contracts"),
)
"""In the order of their imports."""

_OPEN = "import io;F=io.BufferedReader(io.FileIO(0,closefd=False),1);"  # not a byte more than is asked for
FETCH = f"{_OPEN}exec(compile(F.read(int(F.readline())),'pdguard-exercise','exec'))"
"""Run by an interpreter: takes a script from standard input, as `sized` makes it; the rest stays there."""

ENTER = (
    f"{_OPEN}R=F.readline();exec(compile(F.read(int(F.readline())),'pdguard-exercise-room','exec'));enter(R)"
)
"""The same for what `room` makes."""

_LOADER = """
import sys, types
def _load(sources):
    for name in ("pdguard", "pdguard.exercise", "pdguard.exercise.engine"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    for name, text in sources:
        module = types.ModuleType("pdguard.exercise.engine." + name)
        sys.modules[module.__name__] = module
        setattr(sys.modules["pdguard.exercise.engine"], name, module)
        exec(compile(text, "pdguard/exercise/engine/" + name + ".py", "exec"), module.__dict__)
    sys.modules["pdguard.exercise.engine.contracts"].start()
_load(%s)
"""


@functools.cache
def script() -> bytes:
    """The script; it talks to the runner on standard input and output."""
    folder = resources.files("pdguard.exercise.engine")
    sources = [(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    return (_LOADER % ascii(sources)).encode("ascii")


def sized(script: bytes) -> bytes:
    """`script` behind its length."""
    return b"%d\n%b" % (len(script), script)


def room(request: bytes) -> bytes:
    """What `ENTER` reads: it makes the room that `request` asks for (`engine.room.enter`)."""
    text = resources.files("pdguard.exercise.engine").joinpath("room.py").read_bytes()
    return request + b"\n" + sized(text)
