"""Timeouts counted in an engine's log: real lines, each request once, in the window, within bounds."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.errors import InputError
from pdguard.outcomes import logs
from pdguard.outcomes.figures import Engine, missing, with_log
from pdguard.outcomes.interface import Figure, Gap, Source
from pdguard.outcomes.logs import LogCount, check_log, read_log
from tests.outcomes.support import gap, value

# As engines of 0.5.19 to 0.5.23 write it.
TIMED_OUT = (
    "[{at}{rank}] Deferred KV release for room {room} timed out after {t}s "
    "without a full drain ack from prefill; releasing anyway.\n"
)
FAILED = "[{at}{rank}] Deferred KV release failed for room {room}\nTraceback (most recent call last):\n"
OTHER = '[{at}] INFO:     127.0.0.1:40000 - "GET /metrics HTTP/1.1" 200 OK\n'


def timed_out(minute: int, room: int, rank: str = "", t: str = "30.0") -> str:
    return TIMED_OUT.format(at=f"2026-11-30 05:{minute:02d}:15", room=room, rank=rank, t=t)


def failed(minute: int, room: int, rank: str = "") -> str:
    return FAILED.format(at=f"2026-11-30 05:{minute:02d}:15", room=room, rank=rank)


def other(minute: int) -> str:
    return OTHER.format(at=f"2026-11-30 05:{minute:02d}:15")


def read(tmp_path: Path, text: str, window: float = 0.0, *, packed: bool = False) -> LogCount:
    path = tmp_path / "d0.log"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return read_log(path, window, "d0")


@pytest.mark.parametrize("packed", [False, True])
def test_a_log(tmp_path: Path, packed: bool) -> None:
    text = other(1) + timed_out(2, 7) + timed_out(3, 8, t="90.0") + failed(4, 9) + other(5)
    assert read(tmp_path, text, packed=packed) == LogCount(
        2, 1, 90.0, "2026-11-30 05:01:15", "2026-11-30 05:05:15", cut=False
    )


def test_ranks_count_once_and_data_ranks_for_themselves(tmp_path: Path) -> None:
    same = timed_out(2, 7, " TP0") + timed_out(2, 7, " TP1") + timed_out(2, 7, " TP0")
    assert read(tmp_path, same).timeouts == 1
    data = timed_out(2, 7, " DP0 TP0") + timed_out(2, 7, " DP0 TP1") + timed_out(2, 7, " DP1 TP0")
    assert read(tmp_path, data).timeouts == 2


def test_an_error_after_the_timeout_is_an_error(tmp_path: Path) -> None:
    found = read(tmp_path, timed_out(2, 7) + failed(2, 7) + timed_out(3, 8))
    assert (found.timeouts, found.errors) == (1, 1)


def test_the_window_ends_with_the_newest_line(tmp_path: Path) -> None:
    text = timed_out(1, 1) + timed_out(20, 2) + timed_out(39, 3) + other(40)
    assert read(tmp_path, text, 60.1) == LogCount(
        1, 0, 30.0, "2026-11-30 05:39:15", "2026-11-30 05:40:15", cut=False
    )
    assert read(tmp_path, text, 1800).timeouts == 2
    assert read(tmp_path, text, 86_400).timeouts == 3


def test_lines_behind_a_container_s_own_prefix(tmp_path: Path) -> None:
    text = "".join("2026-11-30T06:00:00.123456789Z stdout F " + line for line in (timed_out(1, 1), other(9)))
    assert read(tmp_path, text, 600).timeouts == 1
    assert read(tmp_path, text, 60).timeouts == 0


def test_undated_lines_count(tmp_path: Path) -> None:
    text = timed_out(1, 1).partition("] ")[2]
    assert read(tmp_path, text, 60) == LogCount(1, 0, 30.0, "", "", cut=False)


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_PLAIN", 2000)
    text = timed_out(1, 1) + other(2) * 100 + timed_out(30, 2) + other(31)
    whole = read(tmp_path, text, 3600)
    assert (whole.timeouts, whole.cut) == (1, True)
    assert read(tmp_path, text, 90).cut is False


def test_a_packed_log_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_UNPACKED", 100_000)
    with pytest.raises(InputError, match="the log of d0 cannot be read"):
        read(tmp_path, "x" * 200_000, packed=True)


def test_a_line_without_end(tmp_path: Path) -> None:
    found = read(tmp_path, other(1) + "x" * 3_000_000 + timed_out(1, 1) + timed_out(2, 2) + other(3))
    assert found.timeouts == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the log of d0 cannot be read.*no such file"):
        read_log(tmp_path / "none", 0, "d0")
    for file in ("none", ".", "bad.gz"):
        (tmp_path / "bad.gz").write_bytes(b"\x1f\x8bno")
        with pytest.raises(InputError, match="the log of d0 cannot be read"):
            check_log(tmp_path / file, "d0")
    (tmp_path / "good.log").write_text("a line\n")
    check_log(tmp_path / "good.log", "d0")
    with pytest.raises(InputError, match="is a directory"):
        read_log(tmp_path, 0, "d0")
    for content in (b"\x1f\x8bxx", gzip.compress(b"x" * 9999)[:-9]):
        (tmp_path / "bad.gz").write_bytes(content)
        with pytest.raises(InputError, match="not a whole gzip file"):
            read_log(tmp_path / "bad.gz", 0, "d0")


@given(st.binary(max_size=3000))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    line = TIMED_OUT.format(at="2026-99-99 05:00:00", rank="", room=1, t="nan").encode()
    path.write_bytes(b"-" + content + b"\n" + line)
    found = read_log(path, 60, "d0")
    assert (found.timeouts, found.t_hold) == (1, None)


def test_figures_from_a_log() -> None:
    nothing = missing(Engine("d0", "decode", "0.5.20"), 60, Gap("counts none"))
    count = LogCount(3, 1, 45.0, "2026-11-30 05:39:15", "2026-11-30 05:40:15", cut=True)
    found = with_log(nothing, count, "d0.log")
    assert (value(found.holds["timeout"]), value(found.holds["error"]), value(found.t_hold)) == (3, 1, 45)
    assert gap(found.holds["drained"]).why == "a hold that drains leaves no line in the log"
    timeout = found.holds["timeout"]
    assert isinstance(timeout, Figure)
    assert timeout.source is Source.LOG
    assert timeout.ref == (
        "d0.log, from 2026-11-30 05:39:15 to 2026-11-30 05:40:15 by its own clock, its older lines not read"
    )
    counted = with_log(
        missing(Engine("d0", "decode", "0.5.23"), 60, Gap("x")), LogCount(0, 0, None, "", "", cut=False), "f"
    )
    assert gap(counted.t_hold).why == "no line of its log names it: no hold ended by timeout"


def test_counters_win_over_a_log() -> None:
    from dataclasses import replace

    engine = missing(Engine("d0", "decode", "0.5.23"), 60, Gap("x"))
    engine = replace(engine, holds={"timeout": Figure(5, Source.ENGINE, "r")})
    found = with_log(engine, LogCount(3, 1, 45.0, "", "", cut=False), "f")
    assert (value(found.holds["timeout"]), value(found.t_hold)) == (5, 45)
