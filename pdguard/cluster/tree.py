"""YAML text to a tree of values that remember their line and column.

Built from parser events, without recursion: depth, aliases and size are bounded while they are read, so
neither a deep file nor an alias bomb can exhaust the stack or the memory, and a duplicate key is seen
before it is lost.

Only what JSON has is understood: text, whole numbers, finite numbers, true and false. YAML 1.1 would
turn `010` into 8, `1:30` into 90 and `on` into true; here all of these stay text, and a numeric field
then refuses them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml import events

MAX_DEPTH = 32
MAX_VALUES = 250_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+|[0-9]\.)?([eE][-+]?[0-9]{1,4})?\Z")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class Missing:
    """The type of `NOTHING`."""


NOTHING = Missing()
"""A key or list item without a value. Not None, so that an optional field cannot swallow it in silence."""

Scalar = str | int | float | bool | Missing


@dataclass(slots=True)
class Fault:
    """One thing wrong in the text, at a line and column counted from 1."""

    line: int
    column: int
    what: str
    expected: str = ""
    found: str = ""


class Unreadable(Exception):
    """The text cannot be read to its end; `fault` says where and why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


@dataclass(slots=True)
class Tree:
    """One value: a scalar, a list of `items`, or a mapping of `entries` (key to its place and its value)."""

    line: int
    column: int
    scalar: Scalar = NOTHING
    items: list[Tree] | None = None
    entries: dict[str, tuple[Tree, Tree]] | None = None
    size: int = 1
    height: int = 0

    def plain(self) -> object:
        """The value as plain Python data, without places."""
        if self.items is not None:
            return [item.plain() for item in self.items]
        if self.entries is not None:
            return {key: value.plain() for key, (_, value) in self.entries.items()}
        return self.scalar


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been read."""

    tree: Tree
    anchor: str | None
    key: Tree | None = None
    merges: list[Tree] = field(default_factory=list)


def read_tree(text: str) -> tuple[Tree, list[Fault]]:
    """The one document in `text`, and the faults that did not keep the rest from being read."""
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, Tree] = {}
        self.root: Tree | None = None
        self.documents = 0
        self.values = 0

    def read(self, text: str) -> tuple[Tree, list[Fault]]:
        for event in _events(text):
            self._take(event)
        if self.root is None or kind_of(self.root) == "nothing":
            raise Unreadable(Fault(1, 1, "the file is empty", "a cluster with at least one engine"))
        return self.root, self.faults

    def _take(self, event: events.Event) -> None:
        mark = event.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if isinstance(event, events.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise Unreadable(Fault(line, column, "a second document begins", "one document in a file"))
        elif isinstance(event, events.AliasEvent):
            tree = self._alias(event, line, column)
            self._add(tree, count=tree.size)
        elif isinstance(event, events.ScalarEvent):
            self._tag(event, line, column)
            tree = Tree(line, column, scalar=_resolve(event))
            self._anchor(event.anchor, tree)
            self._add(tree, merge=event.implicit[0] and event.value == "<<")
        elif isinstance(event, events.CollectionStartEvent):
            self._tag(event, line, column)
            is_list = isinstance(event, events.SequenceStartEvent)
            tree = Tree(line, column, items=[] if is_list else None, entries=None if is_list else {})
            self.stack.append(_Open(tree, event.anchor))
            if len(self.stack) > MAX_DEPTH:
                raise Unreadable(_too_deep(line, column))
        elif isinstance(event, events.CollectionEndEvent):
            self._close(self.stack.pop())

    def _close(self, done: _Open) -> None:
        for merged in done.merges:
            self._merge(done.tree, merged)
        self._anchor(done.anchor, done.tree)
        self._add(done.tree, count=1)

    def _add(self, tree: Tree, *, count: int = 1, merge: bool = False) -> None:
        """Put a finished value where it belongs: root, list item, mapping key or mapping value."""
        self.values += count
        if self.values > MAX_VALUES:
            what = "the file holds too many values once its aliases are expanded"
            raise Unreadable(Fault(tree.line, tree.column, what, f"at most {MAX_VALUES}"))
        if not self.stack:
            self.root = tree
            return
        parent = self.stack[-1]
        if parent.tree.items is not None:
            if kind_of(tree) == "nothing":
                self.faults.append(Fault(tree.line, tree.column, "a list item has no value", "a value"))
            parent.tree.items.append(tree)
        elif parent.key is None:
            parent.key = Tree(tree.line, tree.column, scalar="<<", size=0) if merge else tree
            return
        else:
            key, parent.key = parent.key, None
            self._enter(parent, key, tree)
        # An alias counts with all that it stands for, here and in every list or mapping around it.
        parent.tree.size += tree.size
        parent.tree.height = max(parent.tree.height, tree.height + 1)
        if len(self.stack) + tree.height > MAX_DEPTH:
            raise Unreadable(_too_deep(tree.line, tree.column))

    def _enter(self, parent: _Open, key: Tree, value: Tree) -> None:
        entries = parent.tree.entries
        if entries is None:
            raise AssertionError("only a mapping has keys")
        name = key.scalar
        if name == "<<" and key.size == 0:
            parent.merges.extend(value.items if value.items is not None else [value])
        elif not isinstance(name, str):
            self.faults.append(
                Fault(key.line, key.column, "a key is not text", "text, in quotes if need be", kind_of(key))
            )
        elif name in entries:
            first = f"the first on line {entries[name][0].line}"
            self.faults.append(
                Fault(key.line, key.column, "a key is written twice in one mapping", "each key once", first)
            )
        else:
            if kind_of(value) == "nothing":
                expected = "a value, or neither key nor value"
                self.faults.append(Fault(key.line, key.column, "a key has no value", expected))
            entries[name] = (key, value)

    def _merge(self, into: Tree, merged: Tree) -> None:
        """`<<`: entries of another mapping, where this one has none of that name."""
        if merged.entries is None or into.entries is None:
            what = "'<<' takes in something that is not a mapping"
            self.faults.append(
                Fault(merged.line, merged.column, what, "an alias of a mapping", kind_of(merged))
            )
            return
        for name, entry in merged.entries.items():
            into.entries.setdefault(name, entry)

    def _alias(self, event: events.AliasEvent, line: int, column: int) -> Tree:
        if event.anchor in self.anchors:
            return self.anchors[event.anchor]
        if any(event.anchor == opened.anchor for opened in self.stack):
            raise Unreadable(
                Fault(line, column, "an alias stands inside what it names", "an alias of a finished value")
            )
        raise Unreadable(
            Fault(line, column, "an alias names no anchor above it", "an anchor (&name) before its alias")
        )

    def _anchor(self, anchor: str | None, tree: Tree) -> None:
        if anchor is not None:
            self.anchors[anchor] = tree

    def _tag(self, event: events.ScalarEvent | events.CollectionStartEvent, line: int, column: int) -> None:
        if event.tag not in (None, "!"):
            self.faults.append(Fault(line, column, "a YAML tag is used", "a value without a tag"))


def kind_of(tree: Tree) -> str:
    """What a value is, without the value."""
    if tree.items is not None:
        return "a list"
    if tree.entries is not None:
        return "a mapping"
    if isinstance(tree.scalar, bool):
        return "true or false"
    if isinstance(tree.scalar, int | float):
        return "a number"
    return "text" if isinstance(tree.scalar, str) else "nothing"


def _too_deep(line: int, column: int) -> Fault:
    return Fault(line, column, "lists and mappings are nested too deep", f"at most {MAX_DEPTH} levels")


def _resolve(event: events.ScalarEvent) -> Scalar:
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _NULLS:
        return NOTHING
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.match(text):
        return int(text)
    if len(text) <= 40 and any(c.isdigit() for c in text) and _FLOAT.match(text):
        try:
            number = float(text)
        except ValueError:
            return text
        return number if math.isfinite(number) else text
    return text


def _events(text: str) -> Iterator[events.Event]:
    problem: Unreadable
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        problem = Unreadable(_syntax_fault(error, text))
    except (yaml.YAMLError, UnicodeError):
        problem = Unreadable(Fault(1, 1, "the text cannot be read as YAML", "YAML in UTF-8"))
    else:
        return
    # Raised out here: chained to YAML's own error, a traceback would print lines of the file.
    raise problem


def _quotable(quoted: re.Match[str]) -> str:
    """What YAML quotes, if it is a single sign; anything longer may be text of the file."""
    return quoted.group() if len(quoted.group()) <= 3 else "something else"


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Fault:
    """YAML's own complaint in our form, stripped of everything it quotes from the file."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.split("\n")
    indent = re.match(r"\s*", lines[line - 1]).group() if line <= len(lines) else ""  # type: ignore[union-attr]
    if "\t" in indent:
        return Fault(line, indent.index("\t") + 1, "a tab is used for indentation", "spaces", "a tab")
    problem = re.sub(r"'[^']*'", _quotable, error.problem or "the syntax is wrong")
    context = f" {error.context}" if error.context else ""
    return Fault(line, column, f"not valid YAML{context}: {problem}")
