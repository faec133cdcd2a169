"""Packs the node's modules into one script that a bare Python can run from standard input."""

from __future__ import annotations

import ast
import functools
import zlib
from importlib import resources

MODULES = (
    *("names", "procfs", "sockets", "argline", "process", "router"),
    *("pyenv", "seen", "imports", "files", "release", "package", "main"),
)
"""In the order of their imports."""

_LOADER = """# coding: latin-1
import ast, sys, types, zlib
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
_load(REQUEST, ast.literal_eval(zlib.decompress('%s'.encode("latin-1")).decode("ascii")))
"""


@functools.cache
def script() -> bytes:
    """The script; it expects the request in the global `REQUEST` and writes JSON to standard output.

    It goes to every node, so it is kept small: without docstrings, compressed, and as bytes that stand for
    themselves wherever a string literal allows it.
    """
    folder = resources.files("pdguard.node")
    texts = [(name, _bare((folder / f"{name}.py").read_text(encoding="utf-8"))) for name in MODULES]
    packed = zlib.compress(ascii(texts).encode("ascii"), 9).decode("latin-1")
    for plain, escaped in (("\\", r"\\"), ("'", r"\'"), ("\n", r"\n"), ("\r", r"\r"), ("\0", r"\x00")):
        packed = packed.replace(plain, escaped)
    return (_LOADER % packed).encode("latin-1")


def _bare(text: str) -> str:
    """`text` without docstrings, and with every line where it was."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str) and node.end_lineno is not None:
            first, last = node.lineno - 1, node.end_lineno - 1
            lines[first] = lines[first][: node.col_offset] + "''"  # still first, and still a statement
            lines[first + 1 : last + 1] = [""] * (last - first)
    return "\n".join(lines)
