"""One source file: finds a named class, function or assignment, and gives its text in one normal form.

The normal form has no comments, docstrings or annotations and one layout, so that formatting and edits nearby
do not matter. Only the places that a rule asks for are brought into it.
"""

from __future__ import annotations

import ast
import re
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
# Decorators that leave the body of a definition as it is; behind any other one it may be replaced.
_HARMLESS = re.compile(
    r"@\s*(staticmethod|classmethod|property|((typing|typing_extensions)\.)?(override|final)|(abc\.)?abstractmethod"
    r"|(functools\.)?(cache|lru_cache|wraps)(\(.*\))?|(contextlib\.)?contextmanager"
    r"|(dataclasses\.)?dataclass(\(.*\))?|torch\.(no_grad|inference_mode)\(.*\)"
    r"|scheduler_stage_method\(.*\))",
    re.DOTALL,
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
    _rebound: list[tuple[int, str]] = field(default_factory=list)
    _refused: str = ""
    _normal: dict[str, Normal | None] = field(default_factory=dict)

    def normal(self, path: str) -> Normal | None:
        """The normal form of the place called `path`; None without such a place, or without Python in it."""
        if path not in self._normal:
            node = self.find(path)
            self._normal[path] = None if node is None else _normalise(node)
        return self._normal[path]

    def find(self, path: str) -> Any | None:
        """The syntax node of a dotted path, or None. Of several in one block the last counts, as in Python.

        Raises LookupError where the file cannot be judged, a condition decides which one counts, or something
        later in the file may put another one in its place.
        """
        node = self._parsed()
        so_far = ""
        for name in path.split("."):
            found = list(_named(node, name))
            if not found:
                return None
            if len({_block(one) for one in found}) > 1:
                raise LookupError(f"{path} is defined in several ways")
            node = found[-1]
            so_far = f"{so_far}.{name}" if so_far else name
            if _is_decorated(node):
                raise LookupError(f"{so_far} stands behind a decorator that is not known here")
            self._refuse_rebound(so_far, node.range().end.line + 1)
        return node

    def _refuse_rebound(self, path: str, end: int) -> None:
        for line, name in self._rebound:
            if line > end and (name == path or name.startswith(path + ".__")):
                raise LookupError(f"{path} may be replaced in line {line}")

    def _parsed(self) -> Any:
        if self._refused:
            raise LookupError(self._refused)
        if self._root is None:
            from ast_grep_py import SgRoot

            if len(self.text) > MAX_LENGTH:
                raise LookupError("the file is too long to be judged")
            try:
                self._root = SgRoot(self.text, "python").root()
            except UnicodeError:
                raise LookupError("the file is no text") from None
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(self.text.removeprefix("\ufeff"))
                self._rebound = sorted(set(_bindings(tree.body, "")))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._refused = "the file is not Python that can be read here"
                raise LookupError(self._refused) from None
        return self._root


def _bindings(body: list[Any], prefix: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module and its classes bind, or hand to a call that may replace it."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.ClassDef):
            yield from _bindings(node.body, f"{prefix}{node.name}.")
            continue
        blocks = [b for f in ("body", "orelse", "finalbody") if isinstance(b := getattr(node, f, None), list)]
        blocks += [one.body for f in ("handlers", "cases") for one in getattr(node, f, ())]
        if blocks:
            for block in blocks:
                yield from _bindings(block, prefix)
            own = [v for f in ("target", "test", "iter") if (v := getattr(node, f, None)) is not None]
            own += [i.optional_vars or i.context_expr for i in getattr(node, "items", ())]
        else:
            own = [node]
        for part in own:
            yield from ((node.lineno, name) for name in _bound(part, prefix))


def _bound(statement: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (prefix + (a.asname or a.name.partition(".")[0]) for a in node.names)
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            return
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield (prefix if isinstance(node, ast.Name) else "") + ast.unparse(node)
        elif isinstance(node, ast.Call):
            named = [a for a in node.args if isinstance(a, (ast.Name, ast.Attribute))]
            if isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr") and named:
                name = node.args[1] if len(node.args) > 1 else None
                member = f".{name.value!s}" if isinstance(name, ast.Constant) else ""
                yield ast.unparse(named[0]) + member
            elif isinstance(statement, ast.Expr):
                yield from map(ast.unparse, named)


def _is_decorated(definition: Any) -> bool:
    around = definition.parent()
    if around is None or around.kind() != "decorated_definition":
        return False
    return not all(_HARMLESS.fullmatch(c.text()) for c in around.children() if c.kind() == "decorator")


def _named(node: Any, name: str) -> Iterator[Any]:
    """Definitions, assignments and imports called `name` below `node`, not looking into other definitions."""
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
        elif kind == "import_from_statement":
            if any(one.text().split()[-1] == name for one in child.children()[3:] if one.is_named()):
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
            tree = _Fold().visit(tree)
            normal = ast.unparse(tree)
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


_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class _Fold(_Strip):
    """Takes away as well what never runs: branches of constant conditions, and what follows a way out."""

    def generic_visit(self, node: ast.AST) -> Any:
        """Every block is cleared once what is in it has been."""
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                cut = _until_it_ends(block)
                setattr(node, name, cut)
        if isinstance(getattr(node, "body", None), list) and not isinstance(node, ast.Module):
            node.body = node.body or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Of a constant condition only the branch that runs stays."""
        self.generic_visit(node)
        truth = _truth(node.test)
        if truth is None:
            return node
        return node.body if truth else (node.orelse or ast.copy_location(ast.Pass(), node))

    def visit_While(self, node: ast.While) -> Any:
        """A loop that never starts goes."""
        self.generic_visit(node)
        if _truth(node.test) is False:
            return node.orelse or ast.copy_location(ast.Pass(), node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        """As for statements."""
        self.generic_visit(node)
        truth = _truth(node.test)
        return node if truth is None else node.body if truth else node.orelse

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """`not` of a constant is one."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and (truth := _truth(node.operand)) is not None:
            return ast.copy_location(ast.Constant(not truth), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Constants that decide nothing go, and so does what stands behind one that decides."""
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for number, value in enumerate(node.values, 1):
            truth = _truth(value)
            if truth is None or truth is decides or number == len(node.values):
                values.append(value)
            if truth is decides:
                if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                    return ast.copy_location(ast.Constant(decides), node)
                break
        node.values = values
        return node if len(values) > 1 else values[0]


def _until_it_ends(block: list[Any]) -> list[Any]:
    for number, statement in enumerate(block, 1):
        if _ends(statement):
            return block[:number]
    return block


def _ends(statement: Any) -> bool:
    if isinstance(statement, ast.If):
        return bool(statement.orelse) and _ends(statement.body[-1]) and _ends(statement.orelse[-1])
    return isinstance(statement, _ENDS)


def _truth(node: ast.expr) -> bool | None:
    """Whether a condition always or never holds; None where that is open."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.BoolOp):
        decides = isinstance(node.op, ast.Or)
        found = [_truth(value) for value in node.values]
        if decides in found:
            return decides
        return None if None in found else not decides
    return None
