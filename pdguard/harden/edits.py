"""Puts code at seams: found by structure in the original text, all edits computed before any is made."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from pdguard.fingerprint.notice import notice
from pdguard.fingerprint.source import SourceFile
from pdguard.harden.model import PAYLOAD_PACKAGE, Backport, Edited, Refusal, Seam

_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=]")
_USED = re.compile(r"\bpdguard_(\w+)\.")
_CAPTURE = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_FUNCTIONS = ("function_definition",)
_BODIES = ("block", "module")
_CLAUSES = ("elif_clause", "else_clause", "except_clause", "finally_clause", "case_clause")


class SeamNotFound(Exception):
    """A seam is not there, or there more than once."""

    def __init__(self, reason: str, nearest: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class _Splice:
    """Replace text[start:end], counted in characters; `order` keeps insertions at one place apart."""

    start: int
    end: int
    text: str
    order: int
    fix: str
    seam: Seam


def edit(
    texts: Mapping[str, str], backports: Sequence[Backport], tool: str
) -> tuple[tuple[Edited, ...], tuple[Refusal, ...]]:
    """The new content of every file that `backports` have a seam in, or the refusals.

    `texts` holds the files by their path below the package; one that is missing there does not exist. `tool`
    is named in the notice that each edited file gets. Either of the two results is empty.
    """
    splices: dict[str, list[_Splice]] = {}
    refusals: list[Refusal] = []
    sources = {name: SourceFile(text) for name, text in texts.items()}
    order = 0
    for backport in backports:
        for seam in backport.seams:
            order += 1
            try:
                found = _splice(sources.get(seam.file), seam, backport.fix, order)
            except SeamNotFound as lost:
                refusals.append(
                    Refusal(backport.fix, seam.name, seam.file, seam.path, lost.reason, lost.nearest)
                )
                continue
            splices.setdefault(seam.file, []).append(found)
    edited: list[Edited] = []
    for file, wanted in splices.items():
        try:
            edited.append(_edited(file, texts[file], wanted, tool))
        except SeamNotFound as lost:
            one = wanted[0]
            refusals.append(Refusal(one.fix, one.seam.name, file, one.seam.path, lost.reason, lost.nearest))
    return ((), tuple(refusals)) if refusals else (tuple(edited), ())


def _edited(file: str, text: str, splices: Sequence[_Splice], tool: str) -> Edited:
    fixes = tuple(dict.fromkeys(s.fix for s in splices))
    newline = "\r\n" if "\r\n" in text else "\n"
    modules = sorted({m for s in splices for m in _USED.findall(s.text)})
    pieces = [(s.start, s.end, s.order, s.text) for s in splices]
    pieces.append(_notice(text, fixes, tool))
    if modules:
        pieces.append(_import(text, modules))
    done, last = [], 0
    for start, end, _, new in sorted(pieces):
        if start < last:
            raise SeamNotFound("two edits of the chosen set meet here")
        done += [text[last:start], new.replace("\n", newline)]
        last = end
    after = "".join([*done, text[last:]])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(after.removeprefix("\ufeff"), file, "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError) as error:
        raise SeamNotFound(f"the edited file would not be Python ({type(error).__name__})") from None
    return Edited(file, text, after, fixes)


def _notice(text: str, fixes: Iterable[str], tool: str) -> tuple[int, int, int, str]:
    """The line that says that the file was changed, as the engine's licence asks for."""
    start = 1 if text.startswith("\ufeff") else 0
    end = start
    for line in text[start:].split("\n", 2)[:2]:
        end += len(line) + 1
        if line.startswith("#!") or _CODING.match(line):
            start = end
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    start = min(start, len(text))
    said = notice(tool, fixes)
    return start, start, -1, said


def _import(text: str, modules: Sequence[str]) -> tuple[int, int, int, str]:
    """Imports of the payload, behind the last import before the first definition."""
    if "\r" in text.replace("\r\n", ""):
        raise SeamNotFound("the file ends some of its lines in a way that is not counted alike everywhere")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body = ast.parse(text.removeprefix("\ufeff")).body
    line = 0
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            line = node.end_lineno or node.lineno
    if not line:
        raise SeamNotFound("the file has no import to put the payload's behind")
    start = sum(len(one) + 1 for one in text.split("\n")[:line])
    return start, start, 0, "".join(f"from {PAYLOAD_PACKAGE} import {m} as pdguard_{m}\n" for m in modules)


def _splice(source: SourceFile | None, seam: Seam, fix: str, order: int) -> _Splice:
    if source is None:
        raise SeamNotFound("there is no such file")
    place = _place(source, seam)
    node = place if seam.find is None else _only(place, seam)
    text = source.text
    if seam.put in ("first", "last"):
        start, indent = _in_body(node, text, seam.put)
        code = _indented(_filled(seam.code, node), indent)
        return _Splice(start, start, code, order, fix, seam)
    span = node.range()
    begin, end = span.start.index, span.end.index
    own_line = not text[text.rfind("\n", 0, begin) + 1 : begin].strip()
    if seam.put == "instead" and not (own_line and _ends_line(text, end)):
        return _Splice(begin, end, _filled(seam.code, node).strip("\n"), order, fix, seam)
    if not own_line or (seam.put == "before" and not _at_edge(node, "start")):
        raise SeamNotFound("what was found does not begin its line", _shown(node))
    if seam.put == "after" and not (_ends_line(text, end) and _at_edge(node, "end")):
        raise SeamNotFound("what was found does not end its line", _shown(node))
    first = text.rfind("\n", 0, begin) + 1
    after = _after_line(text, end)
    indent = text[first:begin]
    code = _indented(_filled(seam.code, node), indent)
    if seam.put == "before":
        return _Splice(first, first, code, order, fix, seam)
    if seam.put == "after":
        return _Splice(after, after, code, order, fix, seam)
    return _Splice(first, after, code, order, fix, seam)


def _place(source: SourceFile, seam: Seam) -> Any:
    try:
        found = source.find(seam.path)
    except LookupError as error:
        raise SeamNotFound(str(error.args[0])) from None
    if found is None:
        raise SeamNotFound(f"there is no {seam.path}", _near_name(source.text, seam.path.split(".")[-1]))
    return found


def _only(place: Any, seam: Seam) -> Any:
    rule = dict(seam.find or {})
    config: Any = rule if "rule" in rule else {"rule": rule}
    found = place.find_all(config)
    if len(found) == 1:
        return found[0]
    if not found:
        raise SeamNotFound("its code is not there as it is known here", _nearest(place, rule))
    lines = ", ".join(str(one.range().start.line + 1) for one in found[:5])
    raise SeamNotFound(f"its code is there {len(found)} times, in lines {lines}")


def _in_body(node: Any, text: str, put: str) -> tuple[int, str]:
    """Where the first or last statement of a function's body goes, and its indentation."""
    if node.kind() not in _FUNCTIONS:
        raise SeamNotFound("what was found is no function", _shown(node))
    body = node.field("body")
    statements = [c for c in body.children() if c.is_named() and c.kind() != "comment"]
    if not statements or statements[0].range().start.line == node.range().start.line:
        raise SeamNotFound("the function has no body of its own lines", _shown(node))
    begin = statements[0].range().start.index
    indent = text[text.rfind("\n", 0, begin) + 1 : begin]
    if indent.strip():
        raise SeamNotFound("the function has no body of its own lines", _shown(node))
    if put == "last":
        return _after_line(text, statements[-1].range().end.index), indent
    if _is_docstring(statements[0]):
        return _after_line(text, statements[0].range().end.index), indent
    return text.rfind("\n", 0, begin) + 1, indent


def _is_docstring(statement: Any) -> bool:
    inner = statement.child(0)
    return bool(statement.kind() == "expression_statement" and inner is not None and inner.kind() == "string")


def _at_edge(node: Any, side: str) -> bool:
    """Whether a statement begins or ends (`side` is start or end) where the node does."""
    index = getattr(node.range(), side).index
    while (around := node.parent()) is not None and around.kind() not in _BODIES:
        if node.kind() in _CLAUSES:
            return True
        if getattr(around.range(), side).index != index:
            return False
        node = around
    return True


def _ends_line(text: str, end: int) -> bool:
    rest = text[end : _after_line(text, end)].strip()
    return not rest or rest.startswith("#")


def _after_line(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _filled(code: str, node: Any) -> str:
    def text_of(match: re.Match[str]) -> str:
        found = node.get_match(match[1])
        if found is None:
            raise SeamNotFound(f"its code names {match[0]}, which the rule does not")
        return str(found.text())

    return _CAPTURE.sub(text_of, code)


def _indented(code: str, indent: str) -> str:
    dedented = textwrap.dedent(code).strip("\n")
    return textwrap.indent(dedented, indent) + "\n" if dedented else ""


def _shown(node: Any) -> str:
    line = node.text().strip().splitlines()[0]
    return f"line {node.range().start.line + 1}, `{line[:80]}`"


def _patterns(rule: Any) -> Iterator[str]:
    """The texts that a rule looks for."""
    if isinstance(rule, Mapping):
        for key, value in rule.items():
            if key in ("pattern", "regex") and isinstance(value, str):
                yield value
            else:
                yield from _patterns(value)
    elif isinstance(rule, list | tuple):
        for value in rule:
            yield from _patterns(value)


def _nearest(place: Any, rule: Mapping[str, Any]) -> str:
    """The line of the place that is most like what the rule looks for."""
    wanted = max(_patterns(rule), key=len, default="")
    start = place.range().start.line + 1
    best = max(
        enumerate(place.text().splitlines(), start),
        key=lambda one: SequenceMatcher(None, wanted, one[1].strip()).ratio(),
        default=None,
    )
    return f"line {best[0]}, `{best[1].strip()[:80]}`" if best and wanted else ""


def _near_name(text: str, name: str) -> str:
    names = sorted(set(re.findall(r"(?:def|class) (\w+)", text)))
    best = max(names, key=lambda one: SequenceMatcher(None, name, one).ratio(), default="")
    return f"`{best}`" if best else ""
