"""The live table: reads again and again, shows rates with sparklines, says when an alert begins or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from pdguard.errors import PdguardError
from pdguard.outcomes.interface import Outcomes
from pdguard.outcomes.meter import KEPT, Line, Meter

if TYPE_CHECKING:
    from rich.table import Table

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.:-=+*#"
_POINTS = 20

COLUMNS = (
    f"each engine: verdict over the last {KEPT} readings (AT RISK an alert, UNKNOWN not told,"
    " QUIET too little to judge, CLEAN); holds = held requests let go a second, held = requests held now,"
    " unproven = share of those holds that ended by the clock or an error,"
    " aborts = clients that left a second; ? = not known"
)
"""What the columns mean, for the head of the plain view and the foot of the table."""


class Screen(Protocol):
    """Where a reading is shown."""

    def show(self, at: str, lines: Sequence[Line]) -> None:
        """One reading; `at` is the time of day."""

    def say(self, at: str, text: str, *, bell: bool) -> None:
        """A sentence of its own: an alert that began or ended, a reading that failed."""


def watch(
    read: Callable[[], Outcomes],
    screen: Screen,
    meter: Meter,
    *,
    every: float,
    clock: Callable[[], float],
    time_of_day: Callable[[], str],
    sleep: Callable[[float], object],
) -> None:
    """Read, show and sleep until Ctrl-C. `read` gives counts since start; `every` is in seconds.

    A reading that fails is told and the next one is awaited. Returns on KeyboardInterrupt, raises only what
    `screen` does.
    """
    alerts: frozenset[tuple[str, str]] = frozenset()
    try:
        while True:
            began = clock()
            try:
                lines = meter.add(read(), began)
            except PdguardError as error:
                screen.say(time_of_day(), f"no reading: {error.what}", bell=False)
            else:
                now = frozenset((line.name, alert) for line in lines for alert in line.alerts)
                for name, alert in sorted(now - alerts):
                    screen.say(time_of_day(), f"ALERT {name} {alert} began", bell=True)
                for name, alert in sorted(alerts - now):
                    screen.say(time_of_day(), f"alert {name} {alert} ended", bell=True)
                alerts = now
                screen.show(time_of_day(), lines)
            sleep(max(0.0, every - (clock() - began)))
    except KeyboardInterrupt:
        return


def sparkline(values: Sequence[float | None], *, unicode: bool, points: int = _POINTS) -> str:
    """The last values as bars, the largest of them full; a blank for one that is not known."""
    last = list(values)[-points:]
    bars = _BLOCKS if unicode else _ASCII
    top = max((v for v in last if v is not None), default=0.0)
    return "".join(
        " " if v is None else bars[round(v / top * (len(bars) - 1)) if top > 0 else 0] for v in last
    )


class PlainScreen:
    """One line a reading, for pipes and files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._headed = False

    def show(self, at: str, lines: Sequence[Line]) -> None:
        """Every engine on the same line; what the columns mean before the first."""
        if not self._headed:
            self._write(COLUMNS)
            self._headed = True
        parts = [
            f"{_safe(line.name)} {line.word.value} "
            + " ".join(f"{name} {text}" for name, text in _cells(line))
            for line in lines
        ]
        self._write(f"{at}  {'; '.join(parts)}")

    def say(self, at: str, text: str, *, bell: bool) -> None:
        """A line of its own; no bell, nobody is there to hear it."""
        self._write(f"{at}  {_safe(text)}")

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class LiveScreen:
    """A table that is drawn again in place, with the last alerts above it."""

    def __init__(self, *, unicode: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._unicode = unicode
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)

    @contextmanager
    def shown(self) -> Iterator[LiveScreen]:
        """The table stands on the terminal, its last state also afterwards."""
        with self._live:
            yield self

    def show(self, at: str, lines: Sequence[Line]) -> None:
        """Draw the table."""
        self._live.update(table(at, lines, unicode=self._unicode), refresh=True)

    def say(self, at: str, text: str, *, bell: bool) -> None:
        """A line above the table."""
        if bell:
            self._console.bell()
        self._console.print(f"{at}  {_safe(text)}", markup=False, highlight=False)


def table(at: str, lines: Sequence[Line], *, unicode: bool) -> Table:
    """The table of one reading."""
    from rich import box
    from rich.table import Table

    made = Table(title=f"release outcomes {at}", box=box.SIMPLE if unicode else box.ASCII)
    made.caption, made.caption_justify = COLUMNS, "left"
    for head in ("engine", "verdict", "holds/s", "", "held", "", "unproven", "aborts/s", "", "alerts"):
        made.add_column(head, no_wrap=head == "")
    for line in lines:
        cells = dict(_cells(line))
        bars = (sparkline(v, unicode=unicode) for v in (line.hold_rate, line.held, line.aborts))
        rate, held, aborts = bars
        style = "red" if line.alerts else ""
        texts = (
            *(_safe(line.name), line.word.value, cells.get("holds", ""), rate, cells.get("held", ""), held),
            *(cells.get("unproven", ""), cells["aborts"], aborts),
            ", ".join(sorted(a.removeprefix("Pdguard") for a in line.alerts)),
        )
        made.add_row(*(_plain(t) for t in texts), style=style)
    return made


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _cells(line: Line) -> Iterator[tuple[str, str]]:
    if line.role == "decode":
        yield "holds", _last(line.hold_rate, "/s")
        yield "held", _last(line.held)
        yield "unproven", "none" if line.ratio is None else f"{line.ratio:.1%} of {line.holds:,.0f}"
    yield "aborts", _last(line.aborts, "/s")


def _last(values: Sequence[float | None], unit: str = "") -> str:
    value = values[-1] if values else None
    return "?" if value is None else f"{value:.3g}{unit}"


def _safe(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
