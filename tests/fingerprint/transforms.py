"""Edits to Python source that leave its meaning alone, and a few that do not, for tests of the fix catalogue.

All take source text and give source text. `path` is dotted as in the catalogue: `Class.method`,
`Class.method.inner`.
"""

from __future__ import annotations

import ast
import copy
import functools
import io
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module:
    """The syntax tree of a file, which nobody may change."""
    return ast.parse(text)


def _ruff(text: str, width: int, *, quotes: str = "double", indent: int = 4) -> str:
    config = [f"line-length={width}", f"format.quote-style='{quotes}'", f"indent-width={indent}"]
    flags = [word for one in config for word in ("--config", one)]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--no-cache", *flags, "-"],
        input=text.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return done.stdout.decode()


def narrow(text: str) -> str:
    """Laid out for 50 columns, in single quotes."""
    return _ruff(text, 50, quotes="single")


def wide(text: str) -> str:
    """Laid out for 300 columns, two columns an indent."""
    return _ruff(text, 300, indent=2)


def one_layout(text: str) -> str:
    """As `ast.unparse` writes it: no comments, no line breaks, single quotes."""
    return ast.unparse(ast.parse(text)) + "\n"


def bare(text: str) -> str:
    """No comments, docstrings or annotations, and then laid out for 70 columns."""
    return _ruff(ast.unparse(ast.fix_missing_locations(_Bare().visit(ast.parse(text)))), 70)


def commented(text: str) -> str:
    """A comment before every statement that stands alone on its line."""
    lines = text.splitlines(keepends=True)
    starts = {n.lineno for n in ast.walk(_tree(text)) if isinstance(n, ast.stmt)}
    out = []
    for number, line in enumerate(lines, 1):
        pad = line[: len(line) - len(line.lstrip())]
        starts_one = number in starts and not line.lstrip().startswith(("elif", "else"))
        out.append(f"{pad}# vendor note: {'x' * 20}\n{line}" if starts_one else line)
    return "".join(out)


LAYOUTS: tuple[Callable[[str], str], ...] = (narrow, wide, one_layout, bare, commented)
"""Edits that no state may depend on, whatever the file."""


def moved_last(text: str, path: str) -> str:
    """The method `path` stands last in its class (a function: last in its file)."""
    lines = text.splitlines(keepends=True)
    node = find(text, path)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    moved = lines[first : node.end_lineno]
    owner = find_any(_tree(text), path.rpartition(".")[0])
    end = owner.end_lineno if isinstance(owner, ast.ClassDef) else len(lines)
    assert end is not None
    assert node.end_lineno is not None
    rest = [*lines[:first], *lines[node.end_lineno : end], "\n", *moved, *lines[end:]]
    if not any(line.strip() for line in lines[node.end_lineno : end]):
        rest = lines
    return _checked("".join(rest))


def with_log_line(text: str, path: str) -> str:
    """A log line as the first statement of `path`."""
    return with_first(text, path, 'logger.info("vendor trace %s", "entered")')


def with_first(text: str, path: str, code: str) -> str:
    """The lines `code` as the first statements of `path`, below its docstring."""
    lines = text.splitlines(keepends=True)
    node = find(text, path)
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    pad = " " * body[0].col_offset
    added = [f"{pad}{line}\n" for line in code.splitlines()]
    at = body[0].lineno - 1
    if isinstance(body[0], ast.FunctionDef | ast.ClassDef) and body[0].decorator_list:
        at = body[0].decorator_list[0].lineno - 1
    return _checked("".join([*lines[:at], *added, *lines[at:]]))


def with_parameter(text: str, path: str) -> str:
    """The function `path` takes one more keyword argument."""
    return _rewritten(text, path, _add_parameter)


def with_keyword(text: str, path: str, called: str = "") -> str:
    """Every call in `path` of a function or method that bears the name `called` passes one more keyword."""

    def edit(node: Function) -> None:
        found = 0
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and called in ("", _last(call.func)):
                call.keywords.append(ast.keyword("vendor_hint", ast.Constant(None)))
                found += 1
        assert found, f"{path} calls no {called}"

    return _rewritten(text, path, edit)


def renamed_local(text: str, path: str, old: str, new: str) -> str:
    """The local variable `old` of `path` has another name."""
    return renamed_locals(text, path, {old: new})


def renamed_locals(text: str, path: str, names: Mapping[str, str]) -> str:
    """The local variables `names` of `path` have other names."""

    def edit(node: Function) -> None:
        found = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in names:
                found.add(part.id)
                part.id = names[part.id]
            elif isinstance(part, ast.arg) and part.arg in names:
                found.add(part.arg)
                part.arg = names[part.arg]
            elif isinstance(part, ast.Nonlocal):
                part.names = [names.get(name, name) for name in part.names]
        assert found == set(names), f"{path} has no local {set(names) - found}"

    return _rewritten(text, path, edit)


def locals_of(text: str, path: str) -> tuple[str, ...]:
    """The names that `path` assigns to or loops over, sorted."""
    node = find(text, path)
    return tuple(
        sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
    )


def renamed(text: str, path: str, new: str) -> str:
    """The function or class `path` is defined under another name; its callers keep the old one."""

    node = find_any(_tree(text), path)
    assert isinstance(node, Function | ast.ClassDef)
    lines = text.splitlines(keepends=True)
    old = path.rsplit(".", maxsplit=1)[-1]
    line = lines[node.lineno - 1]
    assert f" {old}" in line
    lines[node.lineno - 1] = line.replace(f" {old}", f" {new}", 1)
    return _checked("".join(lines))


def without(text: str, path: str) -> str:
    """The function `path` is gone."""
    lines = text.splitlines(keepends=True)
    node = find(text, path)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    pad = " " * node.col_offset
    return _checked("".join([*lines[:first], f"{pad}pass\n", *lines[node.end_lineno :]]))


def dropped(text: str, path: str, name: str) -> str:
    """`path` without the branches whose condition, and the simple statements that, mention `name`."""
    dropper = _Drop(name)

    def edit(node: Function) -> None:
        node.body = dropper.block(node.body)
        assert dropper.found, f"{path} mentions no {name}"

    return _rewritten(text, path, edit)


def rewritten(text: str, path: str, edit: Callable[[Any], None]) -> str:
    """`path` after `edit` has changed its syntax tree (a FunctionDef); the rest stays."""
    return _rewritten(text, path, edit)


def replaced(text: str, path: str, old: str, new: str, count: int = 1) -> str:
    """`path`, written as `ast.unparse` does, with `old` replaced by `new` exactly `count` times."""
    node = find(text, path)
    body = ast.unparse(node)
    assert body.count(old) == count, f"{path} holds {old!r} {body.count(old)} times"
    return _swapped(text, node, body.replace(old, new))


def find(text: str, path: str) -> Function:
    """The syntax tree of the function `path`."""
    node = find_any(_tree(text), path)
    assert isinstance(node, Function), f"{path} is no function"
    return node


def find_any(tree: ast.AST, path: str) -> ast.AST:
    """The definition that the dotted path leads to."""
    node = tree
    for name in filter(None, path.split(".")):
        found = next((d for d in _definitions(node) if d.name == name), None)
        if found is None:
            raise LookupError(f"there is no {path}")
        node = found
    return node


def _definitions(node: ast.AST) -> Iterator[Function | ast.ClassDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            yield child
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _definitions(child)


def _add_parameter(node: Function) -> None:
    node.args.kwonlyargs.append(ast.arg("vendor_hint"))
    node.args.kw_defaults.append(ast.Constant(None))


def _last(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _rewritten(text: str, path: str, edit: Callable[[Function], None]) -> str:
    node = copy.deepcopy(find(text, path))
    edit(node)
    return _swapped(text, node, ast.unparse(ast.fix_missing_locations(node)))


def _swapped(text: str, node: Function, body: str) -> str:
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    pad = " " * node.col_offset
    inner = _in_strings(body)
    new = [
        line if number in inner or not line.strip() else pad + line
        for number, line in enumerate(body.splitlines(keepends=True), 1)
    ]
    return _checked("".join([*lines[:first], *new, "\n", *lines[node.end_lineno :]]))


def _in_strings(body: str) -> set[int]:
    """The lines that begin inside a string."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(body).readline):
        if token.type == tokenize.STRING:
            found |= set(range(token.start[0] + 1, token.end[0] + 1))
    return found


def _checked(text: str) -> str:
    _tree(text)
    return text


class _Drop:
    """Takes statements that mention a name out of blocks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found = 0

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for one in body:
            if isinstance(one, ast.If) and self._mentions(one.test):
                kept += self.block(one.orelse) if one.orelse else []
            elif isinstance(one, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return) and self._mentions(one):
                continue
            else:
                self._inside(one)
                kept.append(one)
        return kept or [ast.Pass()]

    def _inside(self, one: ast.stmt) -> None:
        for part in ("body", "orelse", "finalbody"):
            if isinstance(getattr(one, part, None), list) and getattr(one, part):
                setattr(one, part, self.block(getattr(one, part)))
        for handler in getattr(one, "handlers", ()):
            handler.body = self.block(handler.body)

    def _mentions(self, node: ast.AST) -> bool:
        got = any(
            (isinstance(n, ast.Name) and n.id == self.name)
            or (isinstance(n, ast.Attribute) and n.attr == self.name)
            for n in ast.walk(node)
        )
        self.found += got
        return got


class _Bare(ast.NodeTransformer):
    def generic_visit(self, node: Any) -> Any:
        super().generic_visit(node)
        if isinstance(node, Function | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, Function):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            return ast.Assign([node.target], node.value, lineno=node.lineno)
        return node
