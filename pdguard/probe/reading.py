"""From an answer's JSON to what may be known of it: numbers, classes and keyed hashes.

An answer is read as a whole or event by event. What it said as output is kept until the answer has ended,
as numbers, hashed and dropped then; what it said as an error is classified at once and dropped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdguard.probe.interface import Api, ErrorClass, Finish, Role
from pdguard.probe.sentences import LONGEST, Told, by_status, told

MARKS = 512
MOST_OUTPUTS = 65_536
"""Tokens or characters of output that are counted and hashed."""

_MARK_BITS = (1 << 53) - 1
_LARGEST = 10**12
_DEEPEST = 6
_TEXTS = 16
_CODE = re.compile(r"[\"']code[\"']: ?[\"']((?:prefill|decode)_)")
_FINISHES = {f.value: f for f in (Finish.LENGTH, Finish.STOP, Finish.ABORT)}


@dataclass(frozen=True, slots=True)
class Reading:
    """The part of Seen that comes from what was said. `known` counts values of a known form."""

    error: ErrorClass = ErrorClass.NONE
    inner_status: int | None = None
    error_side: Role | None = None
    said_tokens: int | None = None
    said_limit: int | None = None
    said_seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: Finish = Finish.NONE
    outputs: int = 0
    digest: str = ""
    marks: tuple[int, ...] = ()
    known: int = 0


def parse(data: bytes) -> Any:
    """The JSON value, or Unreadable; raises nothing, whatever the bytes are."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return Unreadable


class Unreadable:
    """Stands for bytes that are no JSON."""


class Reader:
    """Reads one answer. `key` keeps hashes of two runs from being compared."""

    def __init__(self, api: Api, key: bytes) -> None:
        self._api = api
        self._key = key
        self._items: list[int] = []
        self._told = False
        self._so_far = Reading()

    @property
    def outputs(self) -> int:
        """Tokens or characters of output so far."""
        return len(self._items)

    @property
    def ended(self) -> bool:
        """Whether a finish reason or an error has come."""
        return self._so_far.finish is not Finish.NONE or self._so_far.error is not ErrorClass.NONE

    @property
    def known(self) -> int:
        """Values of a known form so far."""
        return self._so_far.known

    def value(self, value: Any, *, status: int = 200) -> bool:
        """Take one JSON value: a whole answer, or one event of a stream. False where it has no known form."""
        if not isinstance(value, dict):
            known = status >= 400 and isinstance(value, (str, list))
            if known:
                self._error(value, status)
        elif _is_error(value, status):
            known = True
            self._error(value, status)
        else:
            known = self._generated(value) if self._api is Api.GENERATE else self._completed(value)
        if known:
            self._set(known=self._so_far.known + 1)
        return known

    def text(self, text: str, *, status: int = 200) -> bool:
        """Take what is no JSON. Only a refusal may look like that: as plain text, or quoted by a router."""
        quoted = text.lstrip()[:64].startswith(("{'error'", '{"error"'))
        if status < 400 and not quoted:
            return False
        self._error(text, status)
        code = _CODE.search(text[:LONGEST])
        if code is not None:
            self._side(code.group(1))
        self._set(known=self._so_far.known + 1)
        return True

    def reading(self) -> Reading:
        """What is known now that the answer has ended; the output is dropped."""
        items, self._items = self._items, []
        if not items:
            return self._so_far
        whole = hashlib.blake2b(",".join(map(str, items)).encode(), key=self._key, digest_size=16)
        marks = tuple(self._mark(item) for item in items[:MARKS])
        return replace(self._so_far, outputs=len(items), digest=whole.hexdigest(), marks=marks)

    def _mark(self, item: int) -> int:
        mark = hashlib.blake2b(b"%d" % item, key=self._key, digest_size=8, person=b"mark").digest()
        return int.from_bytes(mark, "big") & _MARK_BITS

    def _set(self, **changes: Any) -> None:
        self._so_far = replace(self._so_far, **changes)

    def _generated(self, value: Mapping[str, Any]) -> bool:
        """/generate: every event repeats all output so far, unless the engine streams increments."""
        meta, ids, text = value.get("meta_info"), value.get("output_ids"), value.get("text")
        done = None
        if isinstance(meta, dict):
            done = _count(meta.get("completion_tokens"))
            self._counts(meta)
        ids = _token_ids(ids)
        if ids is not None:
            self._take(ids, done)
        elif isinstance(text, str):
            self._take(_signs(text), None)
        if isinstance(meta, dict):
            self._finish(meta.get("finish_reason"))
        return ids is not None or isinstance(text, str) or isinstance(meta, dict)

    def _take(self, items: list[int], done: int | None) -> None:
        """All output so far, or what is new: the engine's own count tells, else whether it begins alike."""
        have = len(self._items)
        if done is not None and done == len(items):
            self._items = items
        elif (done is not None and done == have + len(items)) or items[:have] != self._items:
            self._append(items)
        else:
            self._items = items

    def _append(self, items: list[int]) -> None:
        self._items += items[: MOST_OUTPUTS - len(self._items)]

    def _completed(self, value: Mapping[str, Any]) -> bool:
        """OpenAI's forms: every event holds what is new."""
        usage, choices = value.get("usage"), value.get("choices")
        if isinstance(usage, dict):
            self._counts(usage)
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(first, dict):
            for text in _texts(first):
                self._append(_signs(text))
            self._finish(first.get("finish_reason"))
        return isinstance(first, dict) or isinstance(usage, dict)

    def _counts(self, source: Mapping[str, Any]) -> None:
        for name in ("prompt_tokens", "completion_tokens"):
            number = _count(source.get(name))
            if number is not None:
                self._set(**{name: number})

    def _finish(self, reason: Any) -> None:
        if reason is None:
            return
        word = reason.get("type") if isinstance(reason, dict) else reason
        finish = _FINISHES.get(word, Finish.OTHER) if isinstance(word, str) else Finish.OTHER
        self._set(finish=finish)
        if finish is Finish.ABORT:
            self._error(reason if isinstance(reason, dict) else {}, None, otherwise=ErrorClass.ABORTED)

    def _error(self, value: Any, status: int | None, *, otherwise: ErrorClass | None = None) -> None:
        """Classify an error of any form. The first known sentence stays, and outweighs any status."""
        texts: list[str] = []
        inner: list[int] = []
        self._collect(value, texts, inner, 0)
        said: Told | None = next((t for t in map(told, texts) if t is not None), None)
        if inner and self._so_far.inner_status is None:
            self._set(inner_status=inner[0])
        if said is not None and not self._told:
            self._told = True
            self._set(
                error=said.error, said_tokens=said.tokens, said_limit=said.limit, said_seconds=said.seconds
            )
        elif self._so_far.error is ErrorClass.NONE:
            kind = by_status(status if status and status >= 400 else inner[0] if inner else None)
            self._set(error=otherwise if otherwise and kind is ErrorClass.OTHER else kind)

    def _collect(self, value: Any, texts: list[str], inner: list[int], depth: int) -> None:
        """Every text and status of an error, however it is nested; side of a router's code noted."""
        if depth > _DEEPEST or len(texts) >= _TEXTS:
            return
        if isinstance(value, str):
            texts.append(value[:LONGEST])
        elif isinstance(value, list):
            for one in value[:_TEXTS]:
                self._collect(one, texts, inner, depth + 1)
        elif isinstance(value, dict):
            for name in ("code", "status_code"):
                self._code(value.get(name), texts, inner)
            for name in ("message", "msg", "error", "detail"):
                self._collect(value.get(name), texts, inner, depth + 1)

    def _code(self, code: Any, texts: list[str], inner: list[int]) -> None:
        if isinstance(code, str):
            texts.append(code[:64])
            self._side(code[:64])
            code = int(code) if len(code) == 3 and code.isascii() and code.isdigit() else None
        number = _count(code)
        if number is not None and 100 <= number <= 599:
            inner.append(number)

    def _side(self, code: str) -> None:
        """The half that a router's code names: `decode_bad_request`."""
        for role in (Role.PREFILL, Role.DECODE):
            if code.startswith(f"{role.value}_"):
                self._set(error_side=role)


def _is_error(value: Mapping[str, Any], status: int) -> bool:
    if status >= 400 or value.get("error") is not None or value.get("object") == "error":
        return True
    return "detail" in value and "choices" not in value and "meta_info" not in value


def _count(value: Any) -> int | None:
    """A number that can be a count; true and false are none."""
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _token_ids(value: Any) -> list[int] | None:
    if not isinstance(value, list):
        return None
    ids = [one for one in value[:MOST_OUTPUTS] if type(one) is int and abs(one) <= _LARGEST]
    return ids if len(ids) == len(value[:MOST_OUTPUTS]) else None


def _signs(text: str) -> list[int]:
    return list(map(ord, text[:MOST_OUTPUTS]))


def _texts(choice: Mapping[str, Any]) -> list[str]:
    """What one choice says: a completion's text, a chat's message, or its increment."""
    sources: list[Any] = [choice.get("text")]
    for name in ("message", "delta"):
        part = choice.get(name)
        if isinstance(part, dict):
            sources += [part.get("reasoning_content"), part.get("content")]
    return [one for one in sources if isinstance(one, str)]
