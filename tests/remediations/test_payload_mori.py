"""MORI acknowledges when every write is known to be over, and then only; later metadata is dropped."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.remediations.payload import payload
from tests.remediations.test_payload_drains import (
    FAILED,
    ONE,
    ROOM,
    SUCCESS,
    TWO,
    WAITING,
    Chunk,
    Manager,
    Steps,
    clear,
    every_order,
    run,
)

drains, mori = payload("drains"), payload("mori")
TRANSFERRING = 3


@dataclass
class Mori(Manager):
    """As a hardened MORI has its statements, with the acknowledgement of 0.5.19 and 0.5.20."""

    AUX_DATA_HEADER = b"AUX_DATA"
    transfer_infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    noted: list[tuple[int, int]] = field(default_factory=list)
    opens: bool = False
    """The request begins while the engine looks at the ABORT."""

    def _should_skip_transfer(self, room: int) -> bool:
        return self.request_status.get(room, FAILED) == FAILED

    def _handle_abort_message(self, frames: list[bytes]) -> None:
        status = self.request_status.get(int(frames[1]))
        if self.opens:
            self.opens, self.request_status[ROOM] = False, WAITING
        if status not in (None, FAILED, SUCCESS):
            self.update_status(int(frames[1]), FAILED)

    def note_abort_ack(self, room: int, rank: int) -> None:
        self.noted.append((room, rank))


@dataclass
class Later(Mori):
    """With the acknowledgement of 0.5.21, whose books are its own."""

    def register_deferred_ack_target(self, room: int, ip: str, port: int) -> None:
        self._deferred_ack_targets[room] = (ip, port)

    def _maybe_ack_drained_abort(self, room: int) -> None:
        if self._staging_outstanding.get(room, 0) > 0:
            return
        target = self._deferred_ack_targets.pop(room, None)
        if target is not None:
            self._send_abort_ack(*target, room)


KINDS = (Mori, Later)


def worker(manager: Mori, end: str = "done") -> Steps:
    """`_transfer_worker` with one chunk; `end` is done, failed, slow (the time limit) or broke."""
    chunk = Chunk()
    yield
    try:
        mori.begun(manager, chunk)
        yield
        yield from _process(manager, end)
    except RuntimeError:
        drains.broke(manager, chunk)
        yield
        manager.update_status(ROOM, FAILED)
    mori.done(manager, chunk)


def _process(manager: Mori, end: str) -> Steps:
    if manager._should_skip_transfer(ROOM):
        return
    yield
    if manager._should_skip_transfer(ROOM):
        return
    manager.begin_write()
    yield
    if end == "broke":
        raise RuntimeError
    if mori.skips(manager, ROOM):
        return
    yield
    if end == "done":
        manager.writing -= 1
    mori.waited(manager, ROOM, None if end == "done" else "it failed, or took too long")
    yield
    if not manager._should_skip_transfer(ROOM):
        manager.update_status(ROOM, SUCCESS if end == "done" else FAILED)


def frames(endpoint: tuple[str, int], room: int = ROOM) -> list[bytes]:
    return [b"ABORT", b"%d" % room, endpoint[0].encode(), b"%d" % endpoint[1]]


def abort(manager: Mori, endpoint: tuple[str, int] = ONE) -> Steps:
    """The bootstrap thread takes an ABORT."""
    yield
    manager._handle_abort_message(frames(endpoint))
    yield
    mori.asked(manager, frames(endpoint))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["done", "failed", "broke"])
def test_every_order_of_a_chunk_an_abort_and_the_end_of_the_request(kind: type[Mori], end: str) -> None:
    seen = set()

    def make() -> tuple[Manager, list[Steps]]:
        manager = kind()
        return manager, [worker(manager, end), abort(manager), clear(manager)]

    for manager in every_order(make):
        seen.add(bool(manager.writing))
        assert manager.acked == ([] if manager.writing else [ONE])
        assert not manager._staging_outstanding
    assert seen == ({False} if end == "done" else {False, True})


@pytest.mark.parametrize("kind", KINDS)
def test_every_order_of_two_chunks_that_one_worker_takes(kind: type[Mori]) -> None:
    """Between two chunks nothing is counted; the second one must not follow an acknowledgement."""

    def both(manager: Mori) -> Steps:
        yield from worker(manager)
        if manager.request_status.get(ROOM) == SUCCESS:
            manager.request_status[ROOM] = TRANSFERRING
        yield from worker(manager)

    def make() -> tuple[Manager, list[Steps]]:
        manager = kind()
        return manager, [both(manager), abort(manager)]

    for manager in every_order(make):
        assert manager.acked == [ONE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [None, FAILED, SUCCESS, WAITING, TRANSFERRING])
def test_an_abort_of_any_room_in_which_nothing_is_written_is_answered(
    kind: type[Mori], status: int | None
) -> None:
    manager = kind(request_status={} if status is None else {ROOM: status})
    run([abort(manager)], lambda _: 0)
    assert manager.acked == [ONE]
    assert manager.request_status.get(ROOM) in (None, FAILED, SUCCESS)
    assert manager._deferred_ack_targets == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_room_that_is_announced_in_part_and_still_to_come_is_not_answered(kind: type[Mori]) -> None:
    """The other ranks' destinations, and then writes for all of them, may follow."""
    manager = kind(request_status={}, transfer_infos={ROOM: {"one": object()}})
    run([abort(manager)], lambda _: 0)
    assert manager.acked == []
    manager.request_status[ROOM] = WAITING
    run([worker(manager)], lambda _: 0)
    assert manager.acked == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_room_that_begins_as_it_is_aborted_ends(kind: type[Mori]) -> None:
    manager = kind(request_status={}, opens=True)
    run([abort(manager)], lambda _: 0)
    assert manager.request_status == {ROOM: FAILED}
    assert manager.acked == [ONE]


def test_every_rank_that_asks_is_answered_when_the_write_is_over() -> None:
    manager = Mori()
    steps = worker(manager)
    for _ in range(4):
        next(steps)
    assert manager.writing
    run([abort(manager), abort(manager, TWO)], lambda _: 0)
    assert manager.acked == []
    run([steps], lambda _: 0)
    assert manager.acked == [ONE, TWO]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["failed", "broke"])
def test_a_room_that_was_lost_sight_of_is_never_acknowledged(kind: type[Mori], end: str) -> None:
    manager = kind()
    run([worker(manager, end)], lambda _: 0)
    run([abort(manager), clear(manager), abort(manager, TWO)], lambda _: 0)
    assert manager.acked == []
    assert manager._deferred_ack_targets == {}
    manager.writing = 0
    drains.opened(manager, ROOM)
    run([abort(manager)], lambda _: 0)
    assert manager.acked == [ONE]


@pytest.mark.parametrize(
    "wrong",
    [
        [b"ABORT"],
        [b"ABORT", b"7"],
        [b"ABORT", b"x", b"a", b"1"],
        [b"ABORT", b"7", b"a", b"x"],
        [b"ABORT", b"7", b"\xff", b"1"],
    ],
)
def test_an_abort_that_makes_no_sense_is_passed_over(wrong: list[bytes]) -> None:
    manager = Mori()
    mori.asked(manager, wrong)
    assert manager.acked == []
    assert manager._deferred_ack_targets == {}


def test_more_frames_than_are_known_do_no_harm() -> None:
    manager = Mori(request_status={ROOM: FAILED})
    mori.asked(manager, [*frames(ONE), b"3", b"more"])
    assert manager.acked == [ONE]


def test_without_the_hold_everything_is_as_before() -> None:
    manager = Mori(enable_deferred_decode_kv_release=False)
    chunk = Chunk()
    mori.begun(manager, chunk)
    assert not chunk.staging_counted
    mori.waited(manager, ROOM, "failed")
    assert not drains.withheld(manager, ROOM)
    mori.done(manager, chunk)
    run([abort(manager)], lambda _: 0)
    assert manager.acked == []
    assert mori.skips(manager, ROOM)
    assert not mori.late(manager, [b"AUX_DATA", b"7"])


def test_a_chunk_that_comes_twice_counts_once() -> None:
    manager, chunk = Mori(), Chunk()
    mori.prepare(manager)
    mori.begun(manager, chunk)
    mori.begun(manager, chunk)
    assert manager._staging_outstanding == {ROOM: 1}
    mori.done(manager, chunk)
    assert manager._staging_outstanding == {}


def test_decode_counts_an_acknowledgement_of_three_frames_and_swallows_the_rest() -> None:
    manager = Mori()
    assert mori.taken(manager, [b"ABORT_ACK", b"7", b"2"])
    assert manager.noted == [(7, 2)]
    assert mori.taken(manager, [b"ABORT_ACK", b"7"])
    manager.enable_deferred_decode_kv_release = False
    assert mori.taken(manager, [b"ABORT_ACK", b"7", b"3"])
    assert manager.noted == [(7, 2)]
    assert not mori.taken(manager, [b"MoriMsgGuard", b"7", b"4", b"0"])
    assert not mori.taken(manager, [])


@pytest.mark.parametrize(
    ("status", "dropped"),
    [(None, True), (FAILED, True), (WAITING, False), (TRANSFERRING, False), (SUCCESS, False)],
)
def test_metadata_of_a_room_that_is_over_is_dropped(status: int | None, dropped: bool) -> None:
    manager = Mori(request_status={} if status is None else {ROOM: status})
    message = [b"AUX_DATA", b"%d" % ROOM, b"0", b"1", b"\0\0\0\1", b"x"]
    assert mori.taken(manager, message) is dropped
    assert mori.late(manager, message) is dropped


class TestOf0522:
    """What 0.5.22 counts by itself."""

    @staticmethod
    def manager(*, holds: bool = True) -> Any:
        poisoned: set[int] = set()
        made = SimpleNamespace(
            enable_deferred_decode_kv_release=holds,
            _abort_ack_lock=threading.Lock(),
            _deferred_ack_poisoned_rooms=poisoned,
            request_status={ROOM: WAITING},
            transfer_infos={},
        )

        def poison(room: int) -> None:
            assert made._abort_ack_lock.locked()
            poisoned.add(room)

        made.poison_deferred_ack_room = poison
        return made

    @pytest.mark.parametrize(
        ("failed", "failure", "poisoned"),
        [([], None, False), ([False], None, False), ([False, True], None, True), ([False], "unknown", True)],
    )
    def test_a_failed_status_poisons(self, failed: list[bool], failure: str | None, poisoned: bool) -> None:
        manager = self.manager()
        statuses = [SimpleNamespace(Failed=lambda it=it: it) for it in failed]
        mori.settled(manager, ROOM, statuses, failure)
        assert mori.unanswered(manager, ROOM) is poisoned

    def test_an_error_poisons_where_anything_is_held(self) -> None:
        for holds in (True, False):
            manager = self.manager(holds=holds)
            mori.broken(manager, ROOM)
            assert mori.unanswered(manager, ROOM) is holds

    def test_a_room_that_is_still_to_come_is_not_answered(self) -> None:
        manager = self.manager()
        manager.transfer_infos[ROOM] = {"one": object()}
        assert not mori.unanswered(manager, ROOM)
        del manager.request_status[ROOM]
        assert mori.unanswered(manager, ROOM)
        manager.transfer_infos.clear()
        assert not mori.unanswered(manager, ROOM)
