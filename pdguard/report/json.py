"""The JSON report: every key in its published order, the same bytes for the same evidence.

The text is what `json.dumps(..., indent=1, ensure_ascii=False)` gives. It is put together here because
the standard library indents in pure Python, several times slower on tens of thousands of findings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from functools import lru_cache
from json.encoder import encode_basestring

from pdguard import __version__
from pdguard.facts.interface import Evidence, Subject, Value
from pdguard.policy.model import AuditResult, Finding, Status
from pdguard.report.schema import SCHEMA_ID
from pdguard.report.summary import ordered, summarise

_UNSAFE = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Legal in a JSON string, but harmful on a terminal, or (lone surrogates) impossible in UTF-8."""


class JsonRenderer:
    """`--format json`, for programs."""

    name = "json"

    def render(self, result: AuditResult) -> str:
        """The report as UTF-8 text, indented by one, with a newline at its end."""
        head = {
            "schema": SCHEMA_ID,
            "pdguard": __version__,
            "cluster": result.cluster,
            "generated_at": result.generated_at,
        }
        parts = [f' "{key}": {encode_basestring(text)}' for key, text in head.items()]
        engines = sorted(result.engines, key=lambda s: s.name)
        parts.append(' "engines": ' + _array([_engine(s) for s in engines], 1))
        parts.append(' "findings": ' + _array([_finding(f) for f in ordered(result.findings)], 1))
        summary = json.dumps(summarise(result.findings).as_dict(), indent=1).replace("\n", "\n ")
        parts.append(f' "summary": {summary}')
        text = "{\n" + ",\n".join(parts) + "\n}\n"
        return text if text.isascii() and "\x7f" not in text else _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    """A JSON escape, or the replacement character where UTF-8 has no bytes for it."""
    code = ord(match.group())
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"


def _array(items: Iterable[str], indent: int) -> str:
    """A JSON array of ready texts, whose closing bracket stands at `indent`."""
    pad = "\n" + " " * (indent + 1)
    body = ("," + pad).join(items)
    return f"[{pad}{body}\n{' ' * indent}]" if body else "[]"


def _value(value: Value | None, indent: int) -> str:
    """A fact's value. A float that is not finite becomes a string: JSON has no number for it."""
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'"{value}"'
    return _array([_value(item, indent + 1) for item in value], indent)


@lru_cache(maxsize=4096)
def _strings(texts: tuple[str, ...]) -> str:
    return _array([encode_basestring(t) for t in texts], 3) if texts else "[]"


def _engine(subject: Subject) -> str:
    """Name, role and version (null where missing), then every other known fact by name."""
    facts = subject.facts
    pairs: list[tuple[str, Value | None]] = [
        ("name", subject.name),
        ("role", facts.value("role")),
        ("version", facts.value("version")),
    ]
    first = {key for key, _ in pairs}
    pairs += [(name, fact.value) for name, fact in facts.known() if name not in first]
    body = ",\n   ".join(f"{encode_basestring(key)}: {_value(value, 3)}" for key, value in pairs)
    return "{\n   " + body + "\n  }"


def _evidence(item: Evidence) -> str:
    return (
        f'{{\n     "source": {encode_basestring(item.source)},\n     "ref": {encode_basestring(item.ref)},\n'
        f'     "value": {_value(item.value, 5)}\n    }}'
    )


_STATUS = {status: f'"{status.value}"' for status in Status}


def _finding(f: Finding) -> str:
    enc = encode_basestring
    grade = "null" if f.grade is None else f'"{f.grade.label}"'
    evidence = _array([_evidence(e) for e in f.evidence], 3) if f.evidence else "[]"
    return (
        f'{{\n   "check": {enc(f.check)},\n   "gate": {enc(f.gate)},\n   "severity": "{f.severity.label}",\n'
        f'   "status": {_STATUS[f.status]},\n   "grade": {grade},\n   "target": {enc(f.target)},\n'
        f'   "message": {enc(f.message)},\n   "missing": {_strings(f.missing)},\n   "evidence": {evidence},\n'
        f'   "fix": {_strings(f.fix)},\n   "refs": {_strings(f.refs)}\n  }}'
    )
