"""Server-sent events: the same however the bytes are cut, and bounded."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pdguard.probe.events import DONE, Events, TooMuch

PARTS = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b": note",
        b"event: x",
        b"id:1",
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"\r\n\r\n",
        *[b"\xef\xbb\xbf", b"\xff\x00", b"data: [DONE]", b"data:  {}", b"retry: 1", b":", b""],
    ]
)


def run(pieces: list[bytes], **limits: int) -> list[bytes | str]:
    """All events; the word for the limit where one was passed."""
    events = Events(**limits)
    found: list[bytes | str] = []
    try:
        for piece in pieces:
            for data in events.feed(piece):
                found.append(data)
        for data in events.end():
            found.append(data)
    except TooMuch as error:
        found.append(error.what)
    return found


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(p, len(stream)) for p in places} | {0, len(stream)})
    return [stream[a:b] for a, b in itertools.pairwise(ends)]


@given(st.lists(PARTS, max_size=30), st.lists(st.integers(0, 200), max_size=20))
def test_cuts_do_not_matter(parts: list[bytes], places: list[int]) -> None:
    stream = b"".join(parts)
    whole = run([stream])
    assert run(cut(stream, places)) == whole
    assert run([stream[n : n + 1] for n in range(len(stream))]) == whole


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_any_bytes(stream: bytes, places: list[int]) -> None:
    assert run(cut(stream, places)) == run([stream])


def test_the_forms() -> None:
    stream = (
        b': hello\ndata: {"a":\ndata: 1}\n\nevent: x\r\ndata:two\r\n\r\ndata\r\rid: 3\n\ndata: [DONE]\n\n'
    )
    assert run([stream]) == [b'{"a":\n1}', b"two", b"", DONE]


def test_an_event_without_its_blank_line_is_given_at_the_end() -> None:
    assert run([b"data: one\ndata: tw", b"o"]) == [b"one\ntwo"]
    assert run([b"data: one\n\n"]) == [b"one"]


def test_limits() -> None:
    line = "a line of the stream is longer than what is read of one"
    assert run([b"data: " + b"x" * 90], largest=64) == [line]
    assert run([b": " + b"x" * 90 + b"\n"], largest=64) == [line]
    assert run([b"data: " + b"x" * 50 + b"\n"] * 2, largest=64) == [
        "an event is longer than what is read of one"
    ]
    assert run([b"data:\n\n" * 5], most=3)[3:] == ["the stream has more events than are read of one"]


@given(st.lists(st.integers(0, 100), max_size=9), st.integers(0, 40))
def test_the_total_counts_bytes_and_not_pieces(places: list[int], total: int) -> None:
    stream = b"data: one\n\n: x\n\r\ndata: two\n\n"
    found = run(cut(stream, places), total=total)
    assert found == run([stream], total=total)
    assert (found[-1] == "the stream is longer than what is read of one") == (total < len(stream))
