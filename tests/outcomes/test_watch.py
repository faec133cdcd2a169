"""The live table with a clock of our own: rates, sparklines, alerts that begin and end, a clean end."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from rich.console import Console

from pdguard.errors import NothingCollected
from pdguard.outcomes.definitions import Limits
from pdguard.outcomes.interface import Outcomes
from pdguard.outcomes.meter import KEPT, SETTLED, Line, Meter
from pdguard.outcomes.said import Word
from pdguard.outcomes.watch import COLUMNS, PlainScreen, sparkline, table, watch
from tests.outcomes.made import UNKNOWN, decode, figure, outcomes, prefill


def reading(drained: float, timeout: float = 0, error: float = 0, **more: float) -> Outcomes:
    holds = {"drained": figure(drained), "timeout": figure(timeout), "error": figure(error)}
    fields = {"aborts": 0.0, "requests": 0.0, "failed_transfers": 0.0, "held_now": 0.0, **more}
    waiting = fields.pop("waiting", 0.0)
    figures = {name: figure(value) for name, value in fields.items()}
    queues = {"decode_transfer": figure(waiting)}
    return outcomes(decode(holds=holds, queues=queues, **figures))


class Recorder:
    def __init__(self) -> None:
        self.lines: list[Sequence[Line]] = []
        self.said: list[tuple[str, bool]] = []

    def show(self, at: str, lines: Sequence[Line]) -> None:
        self.lines.append(lines)

    def say(self, at: str, text: str, *, bell: bool) -> None:
        self.said.append((text, bell))


def play(readings: Sequence[Outcomes | Exception], every: float = 5.0) -> Recorder:
    """Run the watch over these readings, then press Ctrl-C."""
    left, now, screen = list(readings), [100.0], Recorder()

    def read() -> Outcomes:
        if not left:
            raise KeyboardInterrupt
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        now[0] += 1.0  # a reading takes a second
        return one

    def sleep(seconds: float) -> None:
        assert seconds == every - 1.0 or isinstance(readings[-1 - len(left)], Exception)
        now[0] += seconds

    run(read, screen, every, lambda: now[0], sleep)
    return screen


def run(
    read: Callable[[], Outcomes],
    screen: Recorder | PlainScreen,
    every: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    meter = Meter(Limits())
    watch(read, screen, meter, every=every, clock=clock, time_of_day=lambda: "12:00:00", sleep=sleep)


def last(readings: Sequence[Outcomes | Exception]) -> Line:
    return play(readings).lines[-1][0]


def test_rates_are_those_between_readings() -> None:
    line = last([reading(10), reading(15, aborts=10)])
    assert line.hold_rate == (1.0,)
    assert line.aborts == (2.0,)
    assert line.held == (0.0, 0.0)
    assert (line.ratio, line.holds) == (0.0, 5.0)


def test_a_restart_counts_from_zero() -> None:
    assert last([reading(100), reading(5)]).hold_rate == (1.0,)


def test_what_is_not_known_is_not_zero() -> None:
    gone = outcomes(decode(holds={}, aborts=UNKNOWN, held_now=UNKNOWN))
    line = last([gone, gone])
    assert (line.hold_rate, line.aborts, line.ratio) == ((None,), (None,), None)
    text = io.StringIO()
    screen = PlainScreen(text)
    screen.show("12:00:00", [line])
    screen.show("12:00:05", [line])
    shown = "d0 UNKNOWN holds ? held ? unproven none aborts ?\n"
    assert text.getvalue() == f"{COLUMNS}\n12:00:00  {shown}12:00:05  {shown}"


def test_a_word_for_each_engine() -> None:
    assert last([reading(0)]).word is Word.UNKNOWN  # a rate needs two
    assert last([reading(0), reading(0)]).word is Word.QUIET
    assert last([reading(0), reading(19)]).word is Word.QUIET  # too few to judge
    assert last([reading(0), reading(20)]).word is Word.CLEAN
    assert last([reading(0), reading(0, timeout=20)]).word is Word.AT_RISK
    served = [outcomes(prefill(requests=figure(n))) for n in (5, 5, 6)]
    assert [lines[0].word for lines in play(served).lines] == [Word.UNKNOWN, Word.QUIET, Word.CLEAN]


def test_an_alert_is_told_when_it_begins_and_when_it_ends() -> None:
    bad = [reading(0), *[reading(0, timeout=30) for _ in range(KEPT - 1)]]
    good = [reading(1000, timeout=30)]
    screen = play([*bad, *good])
    assert screen.said == [
        ("ALERT d0 PdguardHoldTimeoutRatio began", True),
        ("alert d0 PdguardHoldTimeoutRatio ended", True),
    ]


def test_few_holds_raise_nothing() -> None:
    assert play([reading(0), reading(0, timeout=19)]).said == []


def test_each_other_alert() -> None:
    cases = {
        "PdguardHoldReleaseErrors": [reading(0), reading(0, error=1)],
        "PdguardHoldsGrow": [reading(0, held_now=8)] * SETTLED,
        "PdguardTransferFailures": [reading(0), reading(0, failed_transfers=5)],
        "PdguardAbortsSpike": [*[reading(0)] * (SETTLED + 1), reading(0, aborts=100)],
        "PdguardDecodeTransferQueueStuck": [reading(0, waiting=1)] * SETTLED,
    }
    for alert, readings in cases.items():
        assert last(readings).alerts == {alert}
        assert last(readings[:-1]).alerts == frozenset()


def test_a_busy_queue_is_not_stuck() -> None:
    busy = [reading(0, waiting=1, requests=n) for n in range(SETTLED)]
    assert last(busy).alerts == frozenset()


def test_a_failed_reading_is_told_and_the_next_one_awaited() -> None:
    screen = play([reading(0), NothingCollected("no engine gave anything"), reading(1)])
    assert screen.said == [("no reading: no engine gave anything", False)]
    assert len(screen.lines) == 2


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0, None, 2.0], unicode=True) == "▁▅ █"
    assert sparkline([0.0, 0.0], unicode=True) == "▁▁"
    assert sparkline([0.0, 2.0], unicode=False).isascii()
    assert len(sparkline([1.0] * 99, unicode=True)) == 20
    assert sparkline([], unicode=True) == ""


def test_the_table_shows_every_engine_and_no_markup_of_theirs() -> None:
    from dataclasses import replace

    line = last([reading(0), reading(0, error=1)])
    other = play([outcomes(prefill())]).lines[-1][0]
    for unicode in (True, False):
        console = Console(file=io.StringIO(), width=160)
        console.print(table("12:00:00", [replace(line, name="[red]d0\x1b"), other], unicode=unicode))
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert "[red]d0?" in text
        assert "HoldReleaseErrors" in text
        assert "AT RISK" in text
        assert "each engine: verdict over the last" in text
        assert "100.0% of 1" in text
        assert "p0" in text
        assert unicode or text.isascii()
