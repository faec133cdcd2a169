"""Packs modules of the node side into one script that a bare Python can run from standard input."""

from __future__ import annotations

import ast
import functools
import threading
import zlib
from collections.abc import Sequence
from importlib import resources

MODULES = (
    *("names", "procfs", "sockets", "argline", "process", "router"),
    *("pyenv", "seen", "imports", "files", "release", "package", "main"),
)
"""In the order of their imports."""

_PARSING = threading.Lock()
"""CPython 3.11 counts the depth of syntax trees for all threads at once: two that parse at the same time, as
for two nodes, may end with a SystemError."""

_LOADER = """# coding: latin-1
import ast, sys, types, zlib
def _load(request, sources):
    for name, text in sources:
        package, _, own = name.rpartition(".")
        for end in [at for at, sign in enumerate(package + ".") if sign == "."]:
            above = types.ModuleType(package[:end])
            above.__path__ = []
            sys.modules.setdefault(package[:end], above)
        module = types.ModuleType(name)
        sys.modules[name] = module
        setattr(sys.modules[package], own, module)
        exec(compile(text, name.replace(".", "/") + ".py", "exec"), module.__dict__)
    sys.modules[name].run(request)
_load(REQUEST, ast.literal_eval(zlib.decompress('%s'.encode("latin-1")).decode("ascii")))
"""


@functools.cache
def script() -> bytes:
    """The script; it expects the request in the global `REQUEST` and writes JSON to standard output."""
    return pack([f"pdguard.node.{name}" for name in MODULES])


def pack(modules: Sequence[str]) -> bytes:
    """A script of `modules`, full names in the order of their imports; it calls `run` of the last.

    It goes to every node, so it is kept small: without docstrings, compressed, and as bytes that stand for
    themselves wherever a string literal allows it.
    """
    texts = []
    for module in modules:
        package, _, name = module.rpartition(".")
        text = (resources.files(package) / f"{name}.py").read_text(encoding="utf-8")
        texts.append((module, _bare(text)))
    packed = zlib.compress(ascii(texts).encode("ascii"), 9).decode("latin-1")
    for plain, escaped in (("\\", r"\\"), ("'", r"\'"), ("\n", r"\n"), ("\r", r"\r"), ("\0", r"\x00")):
        packed = packed.replace(plain, escaped)
    return (_LOADER % packed).encode("latin-1")


def _bare(text: str) -> str:
    """`text` without docstrings, and with every line where it was."""
    lines = text.split("\n")
    with _PARSING:
        tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str) and node.end_lineno is not None:
            first, last = node.lineno - 1, node.end_lineno - 1
            lines[first] = lines[first][: node.col_offset] + "''"  # still first, and still a statement
            lines[first + 1 : last + 1] = [""] * (last - first)
    return "\n".join(lines)
