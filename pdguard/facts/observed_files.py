"""Reads the documents of `pdguard probe` and `pdguard metrics` for `pdguard audit --with`. Data only.

A document may come from anywhere: its size is bounded, its text is JSON and nothing else, and it may say
those facts that its kind of run can observe, in their own types and words.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pdguard.cluster.model import Cluster
from pdguard.errors import InputError
from pdguard.facts.catalogue import spec
from pdguard.facts.interface import Value
from pdguard.facts.observed import ARROW, MARKED, METRICS, OBSERVABLE, PROBE, EngineMark, Observation

PROBE_SCHEMA, METRICS_SCHEMA = "pdguard.probe/1", "pdguard.metrics/1"
MAX_BYTES = 16 * 1024 * 1024
MAX_OBSERVATIONS = 50_000
MAX_TEXT = 300
MAX_WHOLE = 2**53
CLOCKS_APART = 300.0
"""Seconds by which the clock of the machine that observed may be ahead of this one."""

_SOURCES = {PROBE_SCHEMA: PROBE, METRICS_SCHEMA: METRICS}
_KEYS = ("subject", "name", "fact", "value", "source", "ref", "at")
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def load_observations(files: Sequence[Path], cluster: Cluster, now: float) -> tuple[Observation, ...]:
    """The observations of all `files` about `cluster`, in order. `now` is seconds since 1970.

    Raises InputError for a file that cannot be read, is too large, is no such document, is about another
    cluster, or says something that its kind of run cannot observe.
    """
    found: list[Observation] = []
    for file in files:
        found += parse_observations(_read(file), str(file), cluster, now)
    return tuple(found)


def parse_observations(data: bytes, name: str, cluster: Cluster, now: float) -> list[Observation]:
    """The observations in one document; `name` is what errors call it."""
    document = _json(data, name)
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(schema, str) or schema not in _SOURCES:
        raise InputError(
            f"{name} is not a result of pdguard probe or pdguard metrics",
            expected=f'"schema" {PROBE_SCHEMA} or {METRICS_SCHEMA}',
            found=_show(schema) if isinstance(document, dict) else _kind(document),
            todo="write one with `pdguard probe -f json -o FILE` or `pdguard metrics -f json -o FILE`",
        )
    if document.get("cluster") != cluster.cluster:
        raise InputError(
            f"{name} is about another cluster",
            expected=cluster.cluster,
            found=_show(document.get("cluster")),
            todo="give the result of the same cluster file",
        )
    entries = document.get("observations")
    if not isinstance(entries, list):
        raise InputError(f"{name}: observations", expected="a list", found=_kind(entries))
    if len(entries) > MAX_OBSERVATIONS:
        raise InputError(
            f"{name}: observations", expected=f"at most {MAX_OBSERVATIONS:,}", found=f"{len(entries):,}"
        )
    names = {
        "engine": {e.name for e in cluster.engines},
        "router": {r.name for r in cluster.routers},
        "cluster": {cluster.cluster},
    }
    found = [
        _observation(e, f"{name}: observation {number}", _SOURCES[schema], names, now)
        for number, e in enumerate(entries, 1)
    ]
    marks = _marks(document.get("engines"), name) if schema == PROBE_SCHEMA else ()
    return [replace(one, engines=marks) for one in found]


def _marks(value: object, name: str) -> tuple[EngineMark, ...]:
    """What the engines were that a probe met: without it nobody can tell whether they still run."""
    if not isinstance(value, list) or len(value) > MAX_OBSERVATIONS:
        raise InputError(f"{name}: engines", expected="a list of the engines probed", found=_kind(value))
    found = []
    for number, one in enumerate(value, 1):
        where = f"{name}: engine {number}"
        if not isinstance(one, dict) or set(one) != {"name", *MARKED}:
            raise InputError(where, expected=f"an object with name, {', '.join(MARKED)}", found=_kind(one))
        version = one["version"]
        sizes = []
        for fact in MARKED[1:]:
            size = one[fact]
            if size is not None and (type(size) is not int or not 0 <= size <= MAX_WHOLE):
                raise InputError(f"{where}: {fact}", expected="a whole number or null", found=_show(size))
            sizes.append(size)
        text = None if version is None else _text(version, f"{where}: version")
        found.append(EngineMark(_text(one["name"], f"{where}: name"), text, *sizes))
    return tuple(found)


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file} cannot be read", found=error.strerror or type(error).__name__) from error
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{file} is too large", expected=f"at most {MAX_BYTES // 1024 // 1024} MiB", found="more"
        )
    return data


def _json(data: bytes, name: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        return json.loads(data.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise InputError(f"{name} is not JSON", expected="a JSON document in UTF-8", found=place) from error


def _observation(
    entry: object, where: str, source: str, names: dict[str, set[str]], now: float
) -> Observation:
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        found = ", ".join(sorted(_show(k) for k in entry)[:10]) if isinstance(entry, dict) else _kind(entry)
        raise InputError(where, expected=f"an object with {', '.join(_KEYS)}", found=found)
    text = {key: _text(entry[key], f"{where}: {key}") for key in _KEYS if key != "value"}
    if text["source"] != source:
        raise InputError(f"{where}: source", expected=source, found=_show(text["source"]))
    subject, fact = text["subject"], text["fact"]
    allowed = OBSERVABLE[source]
    if (subject, fact) not in allowed:
        facts = sorted({f for s, f in allowed if s == subject})
        known = sorted({s for s, _ in allowed})
        raise InputError(
            f"{where}: a {source} cannot observe {subject}.{fact}",
            expected=f"one of {', '.join(facts)}" if facts else f"a subject of {', '.join(known)}",
            found=_show(fact if facts else subject),
        )
    _known(subject, text["name"], names, where)
    value = _value(entry["value"], subject, fact, allowed[subject, fact], f"{where}: {subject}.{fact}")
    _in_the_past(text["at"], f"{where}: at", now)
    return Observation(subject, text["name"], fact, value, source, text["ref"], text["at"])


def _known(subject: str, name: str, names: dict[str, set[str]], where: str) -> None:
    parts = name.split(ARROW) if subject == "pair" else [name]
    known = names["engine" if subject == "pair" else subject]
    if len(parts) != (2 if subject == "pair" else 1) or not known.issuperset(parts):
        raise InputError(
            f"{where}: there is no {subject} {_show(name)} in the cluster file",
            expected=f"p0{ARROW}d0, of engines there" if subject == "pair" else _some(known),
            todo="give the result of the same cluster file",
        )


def _value(value: object, subject: str, fact: str, words: Collection[str] | None, where: str) -> Value:
    known = spec(subject, fact)
    kind = "text" if known is None else known.type
    right: Value | None = None
    if (kind == "bool" and isinstance(value, bool)) or (
        kind == "int" and isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE
    ):
        right = value
    elif kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        right = _finite(value)
    elif kind == "text" and isinstance(value, str) and value in (words or ()):
        right = value
    elif kind == "list" and isinstance(value, list) and len(value) <= len(words or ()):
        items = [v for v in value if isinstance(v, str) and v in (words or ())]
        right = tuple(items) if len(items) == len(value) else None
    if right is None:
        wanted = (
            f"{'a list of' if kind == 'list' else 'one of'} {', '.join(words)}" if words else _TYPES[kind]
        )
        raise InputError(where, expected=wanted, found=_show(value))
    return right


_TYPES = {
    "bool": "true or false",
    "int": "a whole number of 0 or more",
    "float": "a number of 0 or more",
    "text": "a text",
    "list": "a list",
}


def _finite(value: float) -> float | None:
    if isinstance(value, int) and value > MAX_WHOLE:
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= MAX_WHOLE else None


def _in_the_past(at: str, where: str, now: float) -> None:
    try:
        seconds = datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        seconds = None
    if seconds is None or not _AT.fullmatch(at):
        raise InputError(where, expected="a UTC time such as 2026-11-30T12:00:00Z", found=_show(at))
    if seconds > now + CLOCKS_APART:
        raise InputError(
            where, expected="a time in the past", found=at, todo="set the clocks of both machines"
        )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or _UNPRINTABLE.search(value):
        raise InputError(
            where, expected=f"a text of at most {MAX_TEXT} printable characters", found=_show(value)
        )
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")


def _show(value: object) -> str:
    """A value from a file in an error: short, and harmless on a terminal."""
    if not isinstance(value, str):
        return (
            str(value)[:40] if isinstance(value, bool | int | float) and abs(value) < 1e18 else _kind(value)
        )
    return "`" + _UNPRINTABLE.sub("?", value[:60]) + ("…" if len(value) > 60 else "") + "`"


def _some(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:6])
    return f"{first} …" if len(names) > 6 else first or "none is named"
