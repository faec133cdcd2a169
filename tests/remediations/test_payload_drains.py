"""An acknowledgement never leaves while a write of its room may land, in whatever order things happen."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remediations.payload import payload

drains, state = payload("drains"), payload("state")
FAILED, WAITING, SUCCESS = 0, 2, 4
ROOM = 7
ONE, TWO = ("10.0.0.1", 1), ("10.0.0.2", 2)
Steps = Iterator[None]


@dataclass
class Chunk:
    room: int = ROOM
    staging_counted: bool = False


@dataclass
class Manager:
    """The statements around the seams, as a hardened engine has them, and a watch on what is written."""

    enable_deferred_decode_kv_release: bool = True
    request_status: dict[int, int] = field(default_factory=lambda: {ROOM: WAITING})
    _staging_outstanding: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    _deferred_ack_targets: dict[int, tuple[str, int]] = field(default_factory=dict)
    writing: int = 0
    acked: list[tuple[str, int]] = field(default_factory=list)

    def update_status(self, room: int, status: int) -> None:
        if room in self.request_status and self.request_status[room] != FAILED:
            self.request_status[room] = status

    def register_deferred_ack_target(self, room: int, ip: str, port: int) -> None:
        self._deferred_ack_targets[room] = (ip, port)
        drains.owe(self, room, ip, port)

    def _maybe_ack_drained_abort(self, room: int) -> None:
        if self._staging_outstanding.get(room, 0) > 0:
            return
        for ip, port in drains.due(self, room):
            self._send_abort_ack(ip, port, room)

    def _send_abort_ack(self, ip: str, port: int, room: int) -> None:
        if drains.withheld(self, room):
            return
        assert not self.writing, "acknowledged while a write may land"
        self.acked.append((ip, port))

    def begin_write(self) -> None:
        assert not self.acked, "a write began after the acknowledgement"
        self.writing += 1


def worker(manager: Manager, end: str = "done", *, coarse: bool = False) -> Steps:
    """One worker with one chunk; `end` is done, failed or broke. Others may run at each yield.

    `coarse` leaves out the yields at which nothing but the worker's own books has changed.
    """
    chunk = Chunk()
    if not coarse:
        yield
    drains.counted(manager, ROOM)
    chunk.staging_counted = True
    yield
    if manager.request_status.get(ROOM, FAILED) == FAILED:
        drains.skipped(manager, chunk)
        return
    yield
    manager.begin_write()
    yield
    if end == "done":
        manager.writing -= 1
    elif end == "failed":  # What failed goes on writing, and that is all that is known of it.
        drains.sent(manager, ROOM, -1)
        manager.update_status(ROOM, FAILED)
    elif end == "broke":
        drains.broke(manager, chunk)
        manager.update_status(ROOM, FAILED)
        return
    if not coarse:
        yield
    drains.finished(manager, chunk)
    if not coarse:
        yield
    manager._maybe_ack_drained_abort(ROOM)


def abort(manager: Manager, endpoint: tuple[str, int]) -> Steps:
    """The bootstrap thread takes an ABORT of one decode rank."""
    active = manager.request_status.get(ROOM, SUCCESS) != SUCCESS
    yield
    if drains.unsettled(manager, ROOM, active):
        manager.update_status(ROOM, FAILED)
        yield
        manager.register_deferred_ack_target(ROOM, *endpoint)
        yield
        manager._maybe_ack_drained_abort(ROOM)
    elif manager._staging_outstanding.get(ROOM, 0) == 0:
        manager._send_abort_ack(*endpoint, ROOM)


def clear(manager: Manager) -> Steps:
    """The scheduler forgets the request; before an ABORT only after it has failed it."""
    manager.update_status(ROOM, FAILED)
    yield
    manager.request_status.pop(ROOM, None)
    drains.cleared(manager, ROOM)


def run(threads: list[Steps], choose: Callable[[int], int]) -> None:
    """Let the threads take turns as `choose` says until all have ended."""
    while threads:
        thread = threads[choose(len(threads))]
        try:
            next(thread)
        except StopIteration:
            threads.remove(thread)


def every_order(make: Callable[[], tuple[Manager, list[Steps]]]) -> Iterator[Manager]:
    """Every interleaving once: the last choice that has an alternative takes it next time."""
    path: list[list[int]] = []
    while True:
        manager, threads = make()
        depth = 0

        def choose(several: int) -> int:
            nonlocal depth
            if depth == len(path):
                path.append([0, several])
            chosen = path[depth][0]
            depth += 1
            return chosen

        run(threads, choose)
        yield manager
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1][0] += 1


@pytest.mark.parametrize("end", ["done", "failed", "broke"])
def test_every_order_of_a_chunk_two_aborts_and_the_end_of_the_request(end: str) -> None:
    orders = 0

    def make() -> tuple[Manager, list[Steps]]:
        manager = Manager()
        return manager, [worker(manager, end), abort(manager, ONE), clear(manager)]

    for manager in every_order(make):
        orders += 1
        if not manager.writing:
            assert ONE in manager.acked
        else:
            assert manager.acked == []
    assert orders > 1000


@pytest.mark.parametrize("end", ["done", "failed"])
def test_every_order_of_two_workers_in_one_room(end: str) -> None:
    """The chunk that is skipped must not speak for the one that is written."""

    def make() -> tuple[Manager, list[Steps]]:
        manager = Manager()
        return manager, [
            worker(manager, end, coarse=True),
            worker(manager, coarse=True),
            abort(manager, ONE),
        ]

    for manager in every_order(make):
        assert (manager.acked == [ONE]) is (not manager.writing)
        assert not any(manager._staging_outstanding.values())


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(["done", "failed", "broke"]), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=60),
)
def test_any_order_of_everything(ends: list[str], forgotten: bool, order: list[int]) -> None:
    manager = Manager()
    threads = [worker(manager, end) for end in ends] + [abort(manager, ONE), abort(manager, TWO)]
    if forgotten:
        threads.append(clear(manager))
    turns = iter(order)
    run(threads, lambda several: next(turns, 0) % several)
    expected = set() if manager.writing else {ONE, TWO}
    assert set(manager.acked) == expected


def test_a_late_abort_of_a_poisoned_room_is_not_answered_until_another_request_takes_the_room() -> None:
    manager = Manager()
    run([worker(manager, "failed")], lambda _: 0)
    run([clear(manager)], lambda _: 0)
    run([abort(manager, ONE)], lambda _: 0)
    assert manager.acked == []
    manager.writing = 0
    drains.opened(manager, ROOM)
    run([abort(manager, ONE)], lambda _: 0)
    assert manager.acked == [ONE]


def test_an_error_after_the_chunk_was_done_poisons_nothing() -> None:
    manager = Manager()
    run([worker(manager)], lambda _: 0)
    drains.broke(manager, Chunk())
    drains.broke(manager, None)
    run([abort(manager, ONE)], lambda _: 0)
    assert manager.acked == [ONE]


def test_a_chunk_that_is_put_off_poisons_only_with_writes_under_way() -> None:
    for writes, answered in (([], True), ([object()], False)):
        manager = Manager()
        drains.postponed(manager, Chunk(), writes)
        run([abort(manager, ONE)], lambda _: 0)
        assert bool(manager.acked) is answered


def test_a_room_that_lives_is_not_acknowledged_although_nothing_is_counted() -> None:
    manager = Manager()
    manager.register_deferred_ack_target(ROOM, *ONE)
    manager._maybe_ack_drained_abort(ROOM)
    assert manager.acked == []
    manager.update_status(ROOM, FAILED)
    manager._maybe_ack_drained_abort(ROOM)
    assert manager.acked == [ONE]
    assert manager._deferred_ack_targets == {}


def test_a_new_request_does_not_answer_for_the_one_before() -> None:
    manager = Manager()
    manager.register_deferred_ack_target(ROOM, *ONE)
    drains.opened(manager, ROOM)
    manager.update_status(ROOM, FAILED)
    manager._maybe_ack_drained_abort(ROOM)
    assert manager.acked == []


def test_what_is_over_stays_over_until_another_request_begins() -> None:
    manager = Manager()
    transferring = 3
    assert not drains.stays_over(manager, ROOM, transferring)
    assert not drains.stays_over(manager, ROOM + 1, WAITING)
    assert drains.stays_over(manager, ROOM + 1, SUCCESS)
    manager.update_status(ROOM, FAILED)
    assert drains.stays_over(manager, ROOM, WAITING)
    manager.enable_deferred_decode_kv_release = False
    assert not drains.stays_over(manager, ROOM, WAITING)
    assert not drains.stays_over(object(), ROOM, WAITING)


def test_who_is_noted_where_the_engine_notes_it_is_answered_too() -> None:
    """As code of a vendor's may do that knows nothing of the payload."""
    manager = Manager(request_status={})
    manager._deferred_ack_targets[ROOM] = ONE
    drains.owe(manager, ROOM, *TWO)
    manager._maybe_ack_drained_abort(ROOM)
    assert sorted(manager.acked) == [ONE, TWO]
    manager._deferred_ack_targets[ROOM] = ONE
    drains.opened(manager, ROOM)
    assert drains.due(manager, ROOM) == []


def test_a_backend_that_does_not_count_forgets_as_before() -> None:
    class Mute:
        enable_deferred_decode_kv_release = True

        def __init__(self) -> None:
            self._deferred_ack_targets = {ROOM: ONE}

    manager = Mute()
    drains.cleared(manager, ROOM)
    assert manager._deferred_ack_targets == {}
    assert not drains.unsettled(manager, ROOM, False)


def test_without_the_hold_nothing_is_kept() -> None:
    manager = Manager(enable_deferred_decode_kv_release=False)
    drains.sent(manager, ROOM, -1)
    drains.poison(manager, ROOM)
    assert not drains.withheld(manager, ROOM)
    drains.skipped(manager, Chunk())
    assert manager.acked == []


@pytest.mark.parametrize("hold", [True, False])
def test_a_release_that_poisons_rooms_itself_is_asked_to_and_keeps_its_count(hold: bool) -> None:
    """From 0.5.22 on: the engine's worker counts the chunk down, or leaves it counted, behind the seam."""
    manager = Manager(enable_deferred_decode_kv_release=hold)
    asked: list[int] = []
    manager.poison_deferred_ack_room = asked.append  # type: ignore[attr-defined]
    chunk = Chunk()
    drains.broke(manager, chunk)
    assert asked == []  # nothing of it was written
    manager._staging_outstanding[ROOM] += 1
    chunk.staging_counted = True
    drains.broke(manager, chunk)
    drains.postponed(manager, chunk, [])
    drains.postponed(manager, chunk, ["a write"])
    assert asked == ([ROOM, ROOM] if hold else [])
    assert (manager._staging_outstanding[ROOM], chunk.staging_counted) == (1, True)
    assert not drains.withheld(manager, ROOM)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "REMEMBERED", 3)
    manager = Manager()
    for room in (1, 2, 3, 1, 4):
        drains.sent(manager, room, -1)
    assert [room for room in range(1, 5) if drains.withheld(manager, room)] == [1, 3, 4]


def test_counts_of_many_threads_add_up() -> None:
    manager = Manager()
    start = threading.Barrier(8)

    def many() -> None:
        start.wait()
        for _ in range(2000):
            chunk = Chunk(staging_counted=True)
            drains.counted(manager, ROOM)
            drains.finished(manager, chunk)

    threads = [threading.Thread(target=many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert dict(manager._staging_outstanding) == {}


def test_the_books_are_made_once_for_all_threads() -> None:
    manager = Manager()
    start = threading.Barrier(8)
    found = []

    def ask() -> None:
        start.wait()
        found.append(state.ledger(manager))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({id(one) for one in found}) == 1
