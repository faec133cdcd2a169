"""One source file: finds a named class, function or assignment, and gives its text in one normal form.

The normal form has no comments, docstrings or annotations and one layout, so that formatting and edits nearby
do not matter. Only the places that a rule asks for are brought into it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_LENGTH = 4 * 1024 * 1024
_DEFINITIONS = ("function_definition", "class_definition")
_BLOCKS = (
    "block",
    "if_statement",
    "else_clause",
    "try_statement",
    "except_clause",
    "with_statement",
    "elif_clause",
    "finally_clause",
    "for_statement",
    "while_statement",
)


@dataclass(slots=True)
class Normal:
    """The normal form of one place: a parsed root to search, and the original line of each of its lines."""

    root: Any
    lines: dict[int, int]
    start: int

    def original_line(self, line: int) -> int:
        """The line in the file (from 1) that a line of the normal form (from 1) comes from."""
        below = [n for n in self.lines if n <= line]
        return self.lines[max(below)] if below else self.start


@dataclass(slots=True)
class SourceFile:
    """A Python source file, parsed once."""

    text: str
    _root: Any = None
    _normal: dict[str, Normal | None] = field(default_factory=dict)

    def normal(self, path: str) -> Normal | None:
        """The normal form of the place called `path`; None without such a place, or without Python in it."""
        if path not in self._normal:
            node = self.find(path)
            self._normal[path] = None if node is None else _normalise(node)
        return self._normal[path]

    def find(self, path: str) -> Any | None:
        """The syntax node of a dotted path, or None. Of several in one block the last counts, as in Python.

        Raises LookupError where the file cannot be judged, or a condition decides which one counts.
        """
        node = self._parsed()
        for name in path.split("."):
            found = list(_named(node, name))
            if not found:
                return None
            if len({_block(one) for one in found}) > 1:
                raise LookupError(f"{path} is defined in several ways")
            node = found[-1]
        return node

    def _parsed(self) -> Any:
        if self._root is None:
            from ast_grep_py import SgRoot

            if len(self.text) > MAX_LENGTH:
                raise LookupError("the file is too long to be judged")
            try:
                self._root = SgRoot(self.text, "python").root()
            except UnicodeError:
                raise LookupError("the file is no text") from None
        return self._root


def _named(node: Any, name: str) -> Iterator[Any]:
    """Definitions and assignments called `name` below `node`, not looking into other definitions."""
    for child in node.children():
        kind = child.kind()
        if kind == "decorated_definition":
            inner = child.field("definition")
            if inner is not None and _is_called(inner, name):
                yield inner
            continue
        if kind in _DEFINITIONS:
            if _is_called(child, name):
                yield child
            continue
        if kind == "expression_statement":
            inner = child.child(0)
            if inner is not None and inner.kind() == "assignment" and inner.field("left").text() == name:
                yield child
        elif kind in _BLOCKS:
            yield from _named(child, name)


def _block(node: Any) -> int:
    """The block that a definition or assignment stands in."""
    around = node.parent()
    if around is not None and around.kind() == "decorated_definition":
        around = around.parent()
    return -1 if around is None else int(around.range().start.index)


def _is_called(definition: Any, name: str) -> bool:
    own = definition.field("name")
    return own is not None and bool(own.text() == name)


def _normalise(node: Any) -> Normal | None:
    start = node.range().start
    # Indented text is parsed below an `if`, which keeps the contents of strings as they are.
    text = node.text() if start.column == 0 else "if 1:\n" + " " * start.column + node.text()
    shift = start.line + 1 - (1 if start.column == 0 else 2)
    try:
        with warnings.catch_warnings():
            # Python warns about escapes in the engine's strings as it reads them.
            warnings.simplefilter("ignore")
            tree: Any = ast.parse(text)
            if start.column:
                tree = ast.Module(tree.body[0].body, [])
            tree = _Strip().visit(tree)
            normal = ast.unparse(ast.fix_missing_locations(tree))
            again = ast.parse(normal)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines: dict[int, int] = {}
    for mine, theirs in zip(ast.walk(again), ast.walk(tree), strict=False):
        new, old = getattr(mine, "lineno", None), getattr(theirs, "lineno", None)
        if type(mine) is type(theirs) and new is not None and old is not None:
            lines.setdefault(new, old + shift)
    from ast_grep_py import SgRoot

    return Normal(SgRoot(normal, "python").root(), lines, start.line + 1)


class _Strip(ast.NodeTransformer):
    """Takes away docstrings and annotations."""

    def _body(self, node: Any) -> Any:
        self.generic_visit(node)
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            node.body = node.body[1:]
        node.body = node.body or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Functions lose their return annotation as well."""
        node.returns = None
        return self._body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """As for plain functions."""
        node.returns = None
        return self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Classes have docstrings."""
        return self._body(node)

    def visit_arg(self, node: ast.arg) -> Any:
        """Arguments keep their name alone."""
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """`x: T = v` becomes `x = v`; `x: T` goes."""
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)
