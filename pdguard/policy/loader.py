"""Reads the check catalogue: one YAML file a check, every fault of every file reported with its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pdguard._yaml import read_tree
from pdguard.errors import CheckFileError, Problem
from pdguard.facts.catalogue import CATALOGUE, ROOTS, spec
from pdguard.policy.expression import Expression, ExpressionError, Ref
from pdguard.policy.message import Message
from pdguard.policy.model import GATES, Check, Examples, Severity

FOR_EACH = {
    "prefill": ("engine",),
    "decode": ("engine",),
    "engine": ("engine",),
    "pair": ("pair", "prefill", "decode"),
    "router": ("router",),
    "node": ("node",),
    "cluster": (),
}
"""What a check may be about, and the roots that its expressions may use (with `cluster` and `policy`)."""

_TEXTS = ("id", "title", "gate", "severity", "for_each", "fail_if", "message", "explain")
_REQUIRED = (*_TEXTS, "fix", "examples")
_KEYS = (*_REQUIRED, "when", "refs", "tags")
_ID = re.compile(r"[A-Z]{3,8}[0-9]{3}")


def load_checks(*folders: Path) -> tuple[Check, ...]:
    """All checks of `folders`, sorted by id.

    Raises CheckFileError with every problem found: a file that is no check, a fact that does not exist, an
    expression that does not compile, an id used twice.
    """
    problems: list[Problem] = []
    checks: dict[str, Check] = {}
    for folder in folders:
        if not folder.is_dir():
            problems.append(Problem(str(folder), 0, 0, "no such folder of checks"))
        elif not any(folder.glob("*.yaml")):
            problems.append(Problem(str(folder), 0, 0, "no check in it, expected files such as PDG101.yaml"))
        for file in sorted(folder.glob("*.yaml")):
            check = _load(file, problems)
            if check is None:
                continue
            if check.id in checks:
                what = f"check {check.id} is defined twice, first in {checks[check.id].file}"
                problems.append(Problem(str(file), 1, 1, what))
            checks[check.id] = check
    if problems:
        raise CheckFileError("the check catalogue cannot be used", problems)
    return tuple(checks[i] for i in sorted(checks))


def _load(file: Path, problems: list[Problem]) -> Check | None:
    read = read_tree(file, problems)
    if read is None:
        return None
    node, data = read
    reader = _Reader(file, node, problems)
    return reader.check(data)


class _Reader:
    """Turns one parsed file into a Check, collecting problems with their place."""

    def __init__(self, file: Path, node: Any, problems: list[Problem]) -> None:
        self.file, self.node, self.problems = file, node, problems
        self.before = len(problems)

    def fault(self, key: str | None, what: str, expected: str = "", found: str = "") -> None:
        mark = getattr(self.node, "start_mark", None)
        for k, v in getattr(self.node, "value", None) or ():
            if isinstance(k, yaml.ScalarNode) and k.value == key:
                mark = v.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        self.problems.append(Problem(str(self.file), line, column, what, expected, found))

    def check(self, data: object) -> Check | None:
        if not isinstance(data, dict) or not all(isinstance(k, str) for k in data):
            self.fault(None, "a check is a mapping", "keys such as id, title, fail_if")
            return None
        for key in data:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, 1)
                self.fault(key, f"unknown key {key!r}", f"{near[0]}" if near else "a key of a check")
        for key in _REQUIRED:
            if key not in data:
                self.fault(None, f"{key} is missing")
        check = self._build(data)
        return check if len(self.problems) == self.before else None

    def _build(self, data: Mapping[str, Any]) -> Check | None:
        texts = {k: self._text(data, k) for k in _TEXTS}
        when = self._text(data, "when") if "when" in data else "true"
        if not _ID.fullmatch(texts["id"]):
            self.fault("id", "an id is letters and three digits", "such as PDG101", repr(texts["id"]))
        elif self.file.stem != texts["id"]:
            self.fault("id", "a check's file bears its id", f"{texts['id']}.yaml", self.file.name)
        if texts["gate"] not in GATES:
            self.fault("gate", "no such gate", " | ".join(GATES), repr(texts["gate"]))
        severities = [s.label for s in Severity]
        if texts["severity"] not in severities:
            self.fault("severity", "no such severity", " | ".join(severities), repr(texts["severity"]))
        if texts["for_each"] not in FOR_EACH:
            self.fault("for_each", "no such target", " | ".join(FOR_EACH), repr(texts["for_each"]))
        roots = (*FOR_EACH.get(texts["for_each"], ()), "cluster", "policy")
        for key, text in (("when", when), ("fail_if", texts["fail_if"])):
            self._expression(key, text, roots)
        self._refs("message", Message(texts["message"]).refs, roots)
        lists = {k: self._list(data, k) for k in ("fix", "refs", "tags")}
        for step in lists["fix"]:
            self._refs("fix", Message(step).refs, roots)
        examples = self._examples(data.get("examples"))
        if len(self.problems) != self.before:
            return None
        return Check(
            id=texts["id"],
            title=texts["title"].strip(),
            gate=texts["gate"],
            severity=Severity[texts["severity"].upper()],
            for_each=texts["for_each"],
            when=when,
            fail_if=texts["fail_if"],
            message=texts["message"].strip(),
            explain=texts["explain"].strip(),
            fix=lists["fix"],
            refs=lists["refs"],
            tags=lists["tags"],
            examples=examples,
            file=str(self.file),
        )

    def _text(self, data: Mapping[str, Any], key: str) -> str:
        value = data.get(key, "")
        if isinstance(value, str) and (value.strip() or key not in data):
            return value
        self.fault(key, f"{key} is text", found=type(value).__name__ if value != "" else "nothing")
        return ""

    def _list(self, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = data.get(key, [])
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return tuple(v.strip() for v in value)
        self.fault(key, f"{key} is a list of texts")
        return ()

    def _expression(self, key: str, text: str, roots: Iterable[str]) -> None:
        if not text.strip():
            return
        try:
            refs = Expression(text).refs
        except ExpressionError as error:
            self.fault(key, f"{key} does not compile: {error}")
            return
        self._refs(key, refs, roots)

    def _refs(self, key: str, refs: Iterable[Ref], roots: Iterable[str]) -> None:
        allowed = tuple(roots)
        for root, name in refs:
            if root not in allowed:
                self.fault(key, f"{root} cannot be used here", " | ".join(allowed), f"{root}.{name}")
            elif spec(root, name) is None:
                near = difflib.get_close_matches(name, CATALOGUE[ROOTS[root]], 1)
                self.fault(
                    key, f"there is no fact {root}.{name}", near[0] if near else "one of docs/facts.md"
                )

    def _examples(self, value: object) -> Examples:
        kinds = ("fail", "pass", "unknown", "skipped")
        if not isinstance(value, dict) or not set(value) <= set(kinds):
            self.fault("examples", "examples are lists by status", " | ".join(kinds))
            return Examples()
        found: dict[str, tuple[Mapping[str, Mapping[str, object]], ...]] = {}
        for kind in kinds:
            rows = value.get(kind) or []
            good = isinstance(rows, list) and all(
                isinstance(r, dict) and all(isinstance(v, dict) for v in r.values()) for r in rows
            )
            if not good:
                self.fault("examples", f"examples.{kind} is a list of facts by root")
                continue
            found[kind] = tuple(rows)
        for kind in ("fail", "pass", "unknown"):
            if not found.get(kind):
                self.fault("examples", f"at least one example of {kind} is needed")
        return Examples(
            fail=found.get("fail", ()),
            pass_=found.get("pass", ()),
            unknown=found.get("unknown", ()),
            skipped=found.get("skipped", ()),
        )
