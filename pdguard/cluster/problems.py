"""From pydantic's errors and our own link faults to `file:line:col: what, expected …, found …`.

A value that was refused is repeated only in fields that cannot hold a secret, and only when it is short.
Everything else is described by its kind, because keys do get pasted into the wrong field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from pdguard.cluster import model, nodes
from pdguard.cluster.fields import OWN_ERROR, PATTERN_WORDS
from pdguard.cluster.links import LinkFault, Loc, nearest
from pdguard.cluster.tree import Tree, kind_of

_NODES: dict[str, type[BaseModel]] = {
    "local": nodes.LocalNode,
    "ssh": nodes.SshNode,
    "kubectl": nodes.KubectlNode,
    "docker": nodes.DockerNode,
}
_MODELS: dict[str, type[BaseModel]] = {
    "engines": model.Engine,
    "routers": model.Router,
    "waivers": model.Waiver,
    "auth": model.Auth,
    "tls": model.Tls,
    "prometheus": model.Prometheus,
    "policy": model.Policy,
}
_ECHOED = frozenset(
    {
        "role",
        "kind",
        "transport",
        "bootstrap_port",
        "port",
        "insecure",
        "built",
        "expires",
        "check",
        "version",
    }
    | set(model.Policy.model_fields)
)
_SHORT = re.compile(r"[A-Za-z0-9.+_:-]{1,16}\Z")
_HARMLESS_KEY = re.compile(r"[A-Za-z][A-Za-z_ -]{0,39}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")
_SECRET_KEYS = frozenset(
    {"apikey", "adminapikey", "key", "token", "apitoken", "bearer", "bearertoken", "authorization"}
    | {"password", "passwd", "secret"}
)

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number in decimal",
    "int_from_float": "a whole number in decimal",
    "float_type": "a finite number in decimal",
    "finite_number": "a finite number in decimal",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number of at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number of at most {}"),
}

Told = tuple[int, int, str, str, str]
"""line, column, what, expected, found"""


class Translator:
    """Turns errors on one tree into problems with places."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.meant: set[Loc] = set()

    def pydantic(self, errors: Iterable[Mapping[str, Any]]) -> Iterator[Told]:
        """The errors of one validation, unknown keys first: they explain missing ones."""
        listed = [(str(e["type"]), _bare(tuple(e["loc"])), e.get("ctx") or {}) for e in errors]
        # The reader of the text tells of keys without a value; a wrong type would be the same fault again.
        listed = [one for one in listed if not self._is_told_elsewhere(one[0], one[1])]
        for kind, loc, _ in listed:
            if kind == "extra_forbidden":
                yield self._unknown_key(loc)
        for kind, loc, ctx in listed:
            if kind == "missing" and loc not in self.meant:
                yield self._missing(loc)
            elif kind == OWN_ERROR and loc != ():
                # An error on () is a link fault, which is told with its own place.
                yield self._own(loc, ctx)
            elif kind not in ("extra_forbidden", "missing", OWN_ERROR):
                yield self._wrong(kind, loc, ctx)

    def link(self, fault: LinkFault) -> Told:
        """A fault between two places of the file."""
        line, column = self._place(fault.loc)
        found = fault.found
        if fault.earlier is not None:
            found = "the same at {}:{}".format(*self._place(fault.earlier))
        return line, column, f"{_path(fault.loc)} {fault.what}", fault.expected, found

    def _wrong(self, kind: str, loc: Loc, ctx: Mapping[str, Any]) -> Told:
        line, column = self._place(loc)
        path, found = _path(loc), self._found(loc)
        if kind in ("union_tag_not_found", "union_tag_invalid"):
            where: Loc = (*loc, "transport")
            words = "local, ssh, kubectl or docker"
            if kind == "union_tag_not_found" and self._at(where) is None:
                return line, column, f"{path} has no transport", words, ""
            return (
                *self._place(where),
                f"{path}.transport is not one that pdguard knows",
                words,
                self._found(where),
            )
        if kind == "literal_error":
            return (
                line,
                column,
                f"{path} is not one of its values",
                str(ctx.get("expected", "")).replace("'", ""),
                found,
            )
        if kind == "string_pattern_mismatch":
            return (
                line,
                column,
                f"{path} is not well formed",
                PATTERN_WORDS.get(str(ctx.get("pattern")), ""),
                found,
            )
        if kind == "string_too_short":
            return line, column, f"{path} is empty", "text", ""
        if kind == "string_too_long":
            return line, column, f"{path} is too long", f"at most {ctx.get('max_length')} characters", ""
        if kind == "too_short":
            return line, column, f"{path} is empty", "at least one entry", ""
        if kind in _BOUNDS:
            key, words = _BOUNDS[kind]
            bound = ctx.get(key)
            text = f"{bound:g}" if isinstance(bound, float) else str(bound)
            return line, column, f"{path} is out of range", words.format(text), found
        expected = _KINDS.get(kind, "")
        if kind == "string_type" and found not in ("a list", "a mapping", "nothing"):
            expected = "text (put it in quotes)"
        return line, column, f"{path} has the wrong type", expected, found

    def _own(self, loc: Loc, ctx: Mapping[str, Any]) -> Told:
        place = (*loc, ctx["field"]) if ctx.get("field") else loc
        return (
            *self._place(place),
            f"{_path(loc)} {ctx['what']}",
            str(ctx["expected"]),
            self._found(place, text=True),
        )

    def _missing(self, loc: Loc) -> Told:
        owner = self._model(loc[:-1])
        field = owner.model_fields.get(str(loc[-1])) if owner else None
        words = (field.description or "").split(";")[0].rstrip(".") if field else ""
        expected = f"{loc[-1]}: {words[:1].lower()}{words[1:]}" if words else str(loc[-1])
        return *self._place(loc[:-1]), f"{_path(loc[:-1])} has no {loc[-1]}", expected, ""

    def _unknown_key(self, loc: Loc) -> Told:
        parent, key = loc[:-1], str(loc[-1])
        line, column = self._place(loc, key=True)
        where = f" in {_path(parent)}" if parent else ""
        if re.sub(r"[^a-z]", "", key.lower()) in _SECRET_KEYS:
            expected = "auth: {api_key_env: VARIABLE} or auth: {api_key_file: PATH}"
            self.meant |= {(*parent, "api_key_env"), (*parent, "api_key_file")}
            return (
                line,
                column,
                f"a key is given inline{where}",
                expected,
                "a value that is not repeated here",
            )
        owner = self._model(parent)
        known = list(owner.model_fields) if owner else []
        near = nearest(key, known)
        if near:
            self.meant.add((*parent, near))
            return line, column, f"unknown key{where}", near, f"{key} (did you mean {near}?)"
        found = key if _HARMLESS_KEY.match(key) else "another key"
        return line, column, f"unknown key{where}", "one of " + ", ".join(known), found

    def _is_told_elsewhere(self, kind: str, loc: Loc) -> bool:
        tree = self._at((*loc, "transport") if kind == "union_tag_invalid" else loc)
        if kind == "too_short":
            # pydantic counts the entries that were good, and tells of the bad ones too.
            return tree is not None and bool(tree.items)
        return tree is not None and kind_of(tree) == "nothing"

    def _model(self, loc: Loc) -> type[BaseModel] | None:
        names = [part for part in loc if isinstance(part, str)]
        if not names:
            return model.Cluster
        if names[0] == "nodes" and len(names) == 2:
            tree = self._at((*loc, "transport"))
            return _NODES.get(str(tree.scalar)) if tree else None
        return _MODELS.get(names[-1])

    def _at(self, loc: Loc) -> Tree | None:
        tree: Tree | None = self.tree
        for part in loc:
            if tree is None:
                return None
            if isinstance(part, int):
                tree = tree.items[part] if tree.items is not None and part < len(tree.items) else None
            else:
                tree = tree.entries[part][1] if tree.entries is not None and part in tree.entries else None
        return tree

    def _place(self, loc: Loc, *, key: bool = False) -> tuple[int, int]:
        """Line and column of a value or its key; where it is not in the file, those of its owner."""
        if loc and loc[-1] == "[key]":
            loc, key = loc[:-1], True
        owner = self._at(loc[:-1]) if loc else None
        if key and owner is not None and owner.entries is not None and loc[-1] in owner.entries:
            place = owner.entries[str(loc[-1])][0]
            return place.line, place.column
        tree = self._at(loc)
        if tree is not None:
            return tree.line, tree.column
        return self._place(loc[:-1]) if loc else (self.tree.line, self.tree.column)

    def _found(self, loc: Loc, *, text: bool = False) -> str:
        """The value if harmless, else its kind; with `text`, nothing for text and mappings."""
        tree = self._at(loc)
        if tree is None:
            return ""
        kind = kind_of(tree)
        field = next((part for part in reversed(loc) if isinstance(part, str)), "")
        if field in _ECHOED and isinstance(tree.scalar, str | int | float):
            value = str(tree.scalar).lower() if isinstance(tree.scalar, bool) else str(tree.scalar)
            if _SHORT.match(value):
                return value
        return "" if text and kind in ("text", "a mapping") else kind


def _bare(loc: tuple[Any, ...]) -> Loc:
    """A pydantic location without the union tag that it puts after the name of a node."""
    return (*loc[:2], *loc[3:]) if len(loc) > 2 and loc[0] == "nodes" and loc[2] in _NODES else loc


def _path(loc: Loc) -> str:
    """`engines[0].auth`, for people. A key that does not look like a name is left out."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part == "[key]":
            return f"a key of {text.rpartition('.')[0]}"
        else:
            text += ("." if text else "") + (part if _NAME.match(part) else "(a key)")
    return text or "the file"
