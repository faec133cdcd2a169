"""Safe text of a known width: cleaning, wrapping, shortening, colour. Needs rich, so import it late."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.style import Style

from pdguard.report.interface import MIN_WIDTH

Span = tuple[str, str]
"""Text and its style; the empty style is none."""

STYLES = {
    "critical": "bold red",
    "high": "red",
    "medium": "yellow",
    "low": "cyan",
    "unknown": "magenta",
    "waived": "blue",
    "ok": "green",
    "dim": "dim",
    "bold": "bold",
}

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@lru_cache(maxsize=4096)
def _cell(char: str) -> int:
    return get_character_cell_size(char)


def cells(text: str) -> int:
    """Terminal columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(_cell, text))


@lru_cache(maxsize=4096)
def _shown(char: str, unicode: bool) -> str:
    """One character as it may be printed: itself, a space, or its escape in ASCII."""
    if char in "\t\n\r":
        return " "
    if not unicode and char == "→":
        return "->"
    if not unicode and not char.isascii():
        return char.encode("ascii", "backslashreplace").decode("ascii")
    # Variation selectors change the width of the character before them.
    if unicodedata.category(char) in _HIDDEN or "\ufe00" <= char <= "\ufe0f":
        code = ord(char)
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    return " " if char.isspace() else char


class Paper:
    """A width, a palette and a character set. Its methods take raw text and give printable text."""

    def __init__(self, width: int, color: bool, unicode: bool) -> None:
        self.width = max(MIN_WIDTH, width)
        self.unicode = unicode
        self.ellipsis = "…" if unicode else "..."
        self.dot = " · " if unicode else " | "
        self._styles = {k: Style.parse(v) for k, v in STYLES.items()} if color else {}
        self._lines: list[str] = []

    def clean(self, text: str) -> str:
        """`text` with control characters, escapes and direction marks spelled out, on one line."""
        if text.isascii() and text.isprintable():
            return text
        return "".join(_shown(char, self.unicode) for char in text)

    def fit(self, text: str, width: int) -> str:
        """Cleaned `text` in at most `width` columns, its middle left out where it is longer."""
        text = self.clean(text)
        if cells(text) <= width:
            return text
        room = width - len(self.ellipsis)
        if room < 2:
            return _take(text, width)
        tail = _take(text[::-1], room // 2)[::-1]
        return _take(text, room - cells(tail)) + self.ellipsis + tail

    def pad(self, text: str, width: int) -> str:
        """Cleaned `text` in exactly `width` columns."""
        text = self.fit(text, width)
        return text + " " * (width - cells(text))

    def paint(self, spans: Iterable[Span]) -> str:
        """Spans of cleaned text as one string, coloured if this paper has colour."""
        return "".join(
            self._styles[style].render(text, color_system=ColorSystem.STANDARD)
            if text and style in self._styles
            else text
            for text, style in spans
        )

    def line(self, *spans: Span) -> None:
        """Write one line of cleaned spans that is known to fit."""
        self._lines.append(self.paint(spans).rstrip(" "))

    def text(self, text: str, *, lead: Sequence[Span] = (), indent: int = 0, style: str = "") -> None:
        """Write `text` wrapped to the width: after `lead` on the first line, at `indent` on the others."""
        taken = sum(cells(part) for part, _ in lead)
        # A lead that leaves no room stands alone, as far as it fits.
        if lead and taken > self.width - 12:
            for part, kind in lead:
                self.text(part.strip(), indent=indent, style=kind)
            lead, taken = (), indent
        rows = wrap(self.clean(text), self.width - (taken if lead else indent), self.width - indent)
        for number, row in enumerate(rows):
            front = lead if lead and number == 0 else ((" " * indent, ""),)
            self.line(*front, (row, style))

    def blank(self) -> None:
        """Write an empty line."""
        self._lines.append("")

    def result(self) -> str:
        """Everything written so far."""
        return "\n".join(self._lines) + "\n"


def _take(text: str, width: int) -> str:
    """The longest start of `text` within `width` columns."""
    used = 0
    for place, char in enumerate(text):
        used += _cell(char)
        if used > width:
            return text[:place]
    return text


def wrap(text: str, first: int, rest: int) -> list[str]:
    """Cleaned `text` as rows: the first in `first` columns, others in `rest`; long words are cut."""
    rows: list[str] = []
    row, used, room = "", 0, first
    for word in re.findall(r"[^ ]+", text):
        left, size = word, cells(word)
        gap = 1 if row else 0
        if used + gap + size <= room:
            row, used = row + " " * gap + left, used + gap + size
            continue
        if row:
            rows.append(row)
            room = rest
        while size > room:
            part = _take(left, room)
            rows.append(part)
            left, room = left[len(part) :], rest
            size = cells(left)
        row, used = left, size
    if row or not rows:
        rows.append(row)
    return rows
