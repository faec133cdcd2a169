"""Typed readers over JSON from outside: a value comes out with the type that was asked for, or a reason does.

Reasons say what was expected and what kind of thing came, never its text: answers carry API keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from packaging.version import InvalidVersion, Version

MAX_WHOLE: Final = 2**53
MAX_VERSION: Final = 64


class _Odd:
    """A value that JSON cannot give: stands where a key came twice or a number is too long to convert."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


TWICE: Final = _Odd("the key twice")
HUGE: Final = _Odd("a number far too big")
ABSENT: Final = _Odd("nothing")


@dataclass(frozen=True, slots=True)
class Bad:
    """Why a value cannot be used."""

    reason: str


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                made[key] = TWICE
            seen.add(key)
    return made


def _short_int(digits: str) -> int | _Odd:
    return int(digits) if len(digits) <= 40 else HUGE


def parse_json(body: bytes) -> object | Bad:
    """The JSON in `body`, keys given twice marked as such, or why it is not JSON."""
    try:
        try:
            made: object = json.loads(body, object_pairs_hook=_pairs)
        except json.JSONDecodeError:
            return Bad(_not_json(body))
        except UnicodeDecodeError:
            return Bad("not JSON: expected UTF-8 text, other bytes came")
        except ValueError:  # an integer with more digits than Python converts
            made = json.loads(body, object_pairs_hook=_pairs, parse_int=_short_int)
    except json.JSONDecodeError:
        return Bad(_not_json(body))
    except RecursionError:
        return Bad("JSON nested too deeply to read")
    return made


def _not_json(body: bytes) -> str:
    start = body[:512].lstrip()
    if not start:
        return "expected JSON, an empty answer came"
    if start.startswith(b"<"):
        return "expected JSON, HTML came"
    if start[:1] in (b"{", b"["):
        return "expected JSON, it breaks off or is malformed"
    return "expected JSON, something else came"


def parse_object(body: bytes) -> dict[str, Any] | Bad:
    """The JSON object in `body`, or why there is none."""
    made = parse_json(body)
    if isinstance(made, Bad):
        return made
    if not isinstance(made, dict):
        return Bad(f"expected a JSON object, {describe(made)} came")
    return made


def describe(value: object) -> str:
    """What kind of thing a value is, in words that hold nothing of it."""
    if isinstance(value, _Odd):
        return value.text
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN or infinity"
    for kind, text in (
        (int, "a whole number"),
        (float, "a decimal number"),
        (str, "a string"),
        (list, "a list"),
    ):
        if isinstance(value, kind):
            return text
    return "an object"


def whole(value: object, low: int = 0, high: int = MAX_WHOLE) -> int | Bad:
    """A whole number from `low` to `high`; a bool is not one, nor is 4096.0 or "4096"."""
    if type(value) is not int:
        return Bad(f"expected a whole number, {describe(value)} came")
    if value < low:
        return Bad(f"expected {low} or more, a smaller number came")
    if value > high:
        return Bad("expected a sensible size, a number far too big came")
    return value


def positive(value: object) -> int | Bad:
    """A whole number of 1 or more."""
    return whole(value, 1)


def decimal(value: object) -> float | Bad:
    """A finite number of 0 or more; whole numbers count."""
    if type(value) is not float and type(value) is not int:
        return Bad(f"expected a number, {describe(value)} came")
    if isinstance(value, float) and not math.isfinite(value):
        return Bad("expected a number, NaN or infinity came")
    if not 0 <= value <= MAX_WHOLE:
        return Bad("expected a number of 0 or more, one out of range came")
    return float(value)


def flag(value: object) -> bool | Bad:
    """True or false; 0, 1 and "true" are not."""
    return value if isinstance(value, bool) else Bad(f"expected true or false, {describe(value)} came")


def word(
    vocabulary: frozenset[str], *, aliases: Mapping[str, str] | None = None, other: bool = False
) -> Callable[[object], str | Bad]:
    """A reader for one word of a vocabulary. A word outside it is `other`, or unusable; it is never kept."""
    known = {w: w for w in vocabulary} | dict(aliases or {})

    def read(value: object) -> str | Bad:
        if not isinstance(value, str):
            return Bad(f"expected a word, {describe(value)} came")
        found = known.get(value)
        if found is None:
            return "other" if other else Bad("not a known value")
        return found

    return read


def version(value: object) -> str | Bad:
    """A version in the normal form of PEP 440."""
    if not isinstance(value, str):
        return Bad(f"expected a version, {describe(value)} came")
    if len(value) > MAX_VERSION:
        return Bad("expected a version, a longer string came")
    try:
        return str(Version(value))
    except InvalidVersion:
        return Bad("expected a version, another string came")
