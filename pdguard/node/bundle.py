"""Packs the node's modules into one script that a bare Python can run from standard input."""

from __future__ import annotations

import functools
from importlib import resources

MODULES = ("names", "procfs", "sockets", "argline", "process", "router", "main")
"""In the order of their imports."""

_LOADER = """
import sys, types
def _load(request, sources):
    for name in ("pdguard", "pdguard.node"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    for name, text in sources:
        module = types.ModuleType("pdguard.node." + name)
        sys.modules[module.__name__] = module
        setattr(sys.modules["pdguard.node"], name, module)
        exec(compile(text, "pdguard/node/" + name + ".py", "exec"), module.__dict__)
    sys.modules["pdguard.node.main"].run(request)
_load(REQUEST, %s)
"""


@functools.cache
def script() -> bytes:
    """The script; it expects the request in the global `REQUEST` and writes JSON to standard output."""
    folder = resources.files("pdguard.node")
    sources = [(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    return (_LOADER % ascii(sources)).encode("ascii")
