"""Decode's door, X6: prefill is told of what decode refuses, beside the scheduler, in time or not at all."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.remediations.engine import Abort, KVPoll, request
from tests.remediations.payload import payload
from tests.remediations.refusing import FAKE, LENGTHS, TOO_LONG, Clock, Prefill, stand_in

R = 7
ADDRESS = "10.0.0.1:8998"


class Wire:
    """The sockets to prefill: one for each rank of it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.broken: set[int] = set()
        self.locks: dict[int, threading.Lock] = defaultdict(threading.Lock)


class Receiver:
    """As much of the engine's receiver as errands use; it leaves in the tables what a real one does."""

    made: list[Receiver] = []  # noqa: RUF012
    wire = Wire()
    infos: tuple[int, ...] | None = (1,)
    raises = False

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int) -> None:
        self.mgr, self.address, self.room = mgr, bootstrap_addr, bootstrap_room
        mgr.request_status[bootstrap_room] = KVPoll.Bootstrapping
        mgr.addr_to_rooms_tracker[bootstrap_addr].add(bootstrap_room)
        self.made.append(self)

    def init(self, rank: int) -> None:
        self.rank = rank
        if self.raises:
            raise RuntimeError("prefill cannot be met")
        if self.infos is None:
            self.mgr.failure_records[self.room] = "could not fetch"
        self.bootstrap_infos = self.infos

    def _connect_to_bootstrap_server(self, info: int) -> tuple[Any, threading.Lock]:
        def send(parts: list[bytes]) -> None:
            assert self.wire.locks[info].locked()
            if info in self.wire.broken:
                raise OSError("gone")
            self.wire.sent.append((info, parts))

        return SimpleNamespace(send_multipart=send), self.wire.locks[info]

    def clear(self) -> None:
        self.mgr.request_status.pop(self.room, None)


class Decode:
    """Decode's queue and manager; `known` are the bootstrap servers that answer."""

    def __init__(self, rank: int | None = 0) -> None:
        self.rank = rank
        self.asked: list[str] = []
        self.known: set[str] = {ADDRESS}
        self.manager = SimpleNamespace(
            request_status={},
            addr_to_rooms_tracker=defaultdict(set),
            failure_records={},
            failure_lock=threading.Lock(),
            local_ip="10.0.1.1",
            rank_port=20000,
            try_ensure_parallel_info=self._ensure,
        )
        self.queue = SimpleNamespace(
            kv_manager=self.manager,
            transfer_backend=SimpleNamespace(value="mooncake"),
            _resolve_prefill_dp_rank=lambda request: self.rank,
        )

    def _ensure(self, address: str) -> bool:
        self.asked.append(address)
        return address in self.known

    @property
    def tables(self) -> tuple[Any, ...]:
        rooms = [rooms for rooms in self.manager.addr_to_rooms_tracker.values() if rooms]
        return self.manager.request_status, rooms, self.manager.failure_records


def req(room: int | None = R, message: str = TOO_LONG, **state: Any) -> Any:
    base = {"bootstrap_room": room, "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998}
    more = {"disagg_prefill_dp_rank": None, "to_finish": Abort(message)}
    return request([], **{**base, **more, **state})


def errand(room: int = R, address: str = ADDRESS, until: float = 1e12, reason: str = LENGTHS) -> Any:
    given = SimpleNamespace(bootstrap_room=room, disagg_prefill_dp_rank=None)
    return payload("errands").Errand(given, address, reason, until)


@pytest.fixture(autouse=True)
def _engine(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(Receiver, "made", [])
    monkeypatch.setattr(Receiver, "wire", Wire())
    utils: Any = sys.modules["sglang.srt.disaggregation.utils"]
    utils.KVClassType = SimpleNamespace(RECEIVER="receiver")
    utils.get_kv_class = lambda backend, kind: Receiver
    decode: Any = ModuleType("sglang.srt.disaggregation.decode")
    decode._bootstrap_addr = lambda req: f"{req.bootstrap_host}:{req.bootstrap_port}"
    monkeypatch.setitem(sys.modules, "sglang.srt.disaggregation.decode", decode)
    package: Any = sys.modules["sglang.srt.disaggregation"]
    monkeypatch.setattr(package, "decode", decode, raising=False)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the bootstrap server says of rooms: one answer for each question, and the questions."""
    answers: list[dict[str, Any]] = []

    def query(address: str, rooms: list[int]) -> dict[str, Any]:
        answers.append({"address": address, "rooms": rooms})
        said = answers.pop(0)
        if said.get("raises"):
            raise OSError("no answer")
        return said

    conn: Any = ModuleType("sglang.srt.disaggregation.common.conn")
    conn.CommonKVReceiver = SimpleNamespace(query_prefill_dp_ranks=query)
    monkeypatch.setitem(sys.modules, "sglang.srt.disaggregation.common.conn", conn)
    return answers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(payload("errands"), "time", made)
    return made


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The errands that the door gives out; no thread runs them."""
    given: list[Any] = []
    monkeypatch.setattr(payload("errands"), "_line", lambda queue: SimpleNamespace(put_nowait=given.append))
    return given


def test_every_rank_of_prefill_is_told_and_the_receiver_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Receiver, "infos", (1, 2))
    decode = Decode(rank=3)
    assert payload("errands").deliver(decode.queue, [errand()], {}) == []
    parts = [b"ABORT", b"7", b"10.0.1.1", b"20000", b"0", b"0", b"pdguard-refused", LENGTHS.encode()]
    assert Receiver.wire.sent == [(1, parts), (2, parts)]
    assert [(one.rank, one.room < 0) for one in Receiver.made] == [(3, True)]
    assert decode.tables == ({}, [], {})


def test_prefill_understands_it() -> None:
    decode, prefill = Decode(), Prefill()
    sender = prefill.admit(R)
    payload("errands").deliver(decode.queue, [errand()], {})
    prefill.take(Receiver.wire.sent[0][1])
    assert sender.poll() == KVPoll.Failed
    assert sender.clear().endswith(LENGTHS)


def test_no_two_receivers_have_one_room() -> None:
    decode = Decode()
    payload("errands").deliver(decode.queue, [errand(room) for room in range(1, 30)], {})
    assert len({one.room for one in Receiver.made}) == 29


@pytest.mark.parametrize("fault", ["init", "send", "no infos"])
def test_an_errand_that_breaks_is_dropped_and_leaves_nothing(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "init":
        monkeypatch.setattr(Receiver, "raises", True)
    elif fault == "send":
        Receiver.wire.broken = {1}
    else:
        monkeypatch.setattr(Receiver, "infos", None)
    decode = Decode()
    assert payload("errands").deliver(decode.queue, [errand(), errand(8)], {}) == []
    assert len(Receiver.made) == 2
    assert decode.tables == ({}, [], {})
    assert Receiver.wire.sent == []


def test_an_engine_that_refuses_prefill_as_a_peer_breaks_one_errand_only() -> None:
    decode = Decode()

    def ensure(address: str) -> bool:
        if address != ADDRESS:
            raise RuntimeError("Page size mismatch")
        return True

    decode.manager.try_ensure_parallel_info = ensure
    assert payload("errands").deliver(decode.queue, [errand(address="other:1"), errand()], {}) == []
    assert len(Receiver.wire.sent) == 1


def test_a_room_that_decode_has_accepted_since_is_not_ended() -> None:
    decode = Decode()
    decode.manager.request_status[R] = KVPoll.WaitingForInput
    assert payload("errands").deliver(decode.queue, [errand()], {}) == []
    assert Receiver.wire.sent == []
    decode.manager.request_status[R] = KVPoll.Failed
    payload("errands").deliver(decode.queue, [errand()], {})
    assert len(Receiver.wire.sent) == 1


def test_a_server_that_does_not_answer_is_asked_once_and_then_left_alone(clock: Clock) -> None:
    errands, decode = payload("errands"), Decode()
    silent: dict[str, float] = {}
    decode.known = set()
    some = [errand(room) for room in range(20)]
    left = errands.deliver(decode.queue, some, silent)
    assert (left, decode.asked) == (some, [ADDRESS])
    clock.now += errands.REST - 0.1
    assert errands.deliver(decode.queue, left, silent) == some
    assert decode.asked == [ADDRESS]
    clock.now += 0.2
    decode.known = {ADDRESS}
    assert errands.deliver(decode.queue, left, silent) == []
    assert len(Receiver.wire.sent) == 20
    assert silent == {}


def test_servers_that_nobody_asks_for_again_are_forgotten(clock: Clock) -> None:
    errands, decode = payload("errands"), Decode()
    silent: dict[str, float] = {}
    decode.known = set()
    errands.deliver(decode.queue, [errand(1, f"10.9.9.{n}:1") for n in range(50)], silent)
    assert len(silent) == 50
    clock.now += errands.REST
    errands.deliver(decode.queue, [], silent)
    assert silent == {}


def test_what_cannot_be_told_in_time_is_dropped(clock: Clock) -> None:
    errands, decode = payload("errands"), Decode()
    decode.known = set()
    waiting = errands.deliver(decode.queue, [errand(until=clock.now + 10)], {})
    assert len(waiting) == 1
    clock.now += 10
    assert errands.deliver(decode.queue, waiting, {}) == []
    assert Receiver.made == []


def test_what_waits_has_an_end(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    errands, decode = payload("errands"), Decode()
    monkeypatch.setattr(errands, "MOST", 4)
    decode.known = set()
    assert len(errands.deliver(decode.queue, [errand(room) for room in range(9)], {})) == 4


def test_the_server_is_asked_once_for_all_rooms_whose_rank_it_alone_knows(
    ranks: list[dict[str, Any]],
) -> None:
    decode = Decode(rank=None)
    ranks.append({"1": 4, "3": 0})
    left = payload("errands").deliver(decode.queue, [errand(room) for room in (1, 2, 3)], {})
    assert [one.request.bootstrap_room for one in left] == [2]
    assert [(one.rank) for one in Receiver.made] == [4, 0]
    assert ranks == [{"address": ADDRESS, "rooms": [1, 2, 3]}]


def test_a_server_that_breaks_off_is_asked_again_later(ranks: list[dict[str, Any]]) -> None:
    decode = Decode(rank=None)
    ranks.append({"raises": True})
    assert len(payload("errands").deliver(decode.queue, [errand(1), errand(2)], {})) == 2


def test_the_door_gives_the_errand_out(line: list[Any], clock: Clock) -> None:
    errands, decode = payload("errands"), Decode()
    errands.at_decode(decode.queue, req(disagg_prefill_dp_rank=2))
    (given,) = line
    assert (given.address, given.reason, given.until) == (ADDRESS, LENGTHS, clock.now + errands.PATIENCE)
    assert given.request.bootstrap_room == R
    assert given.request.disagg_prefill_dp_rank == 2


@pytest.mark.parametrize(
    ("state", "re_enters"),
    [
        ({"to_finish": None}, False),
        ({}, True),
        ({"is_retracted": True}, False),
        ({"bootstrap_host": FAKE}, False),
        ({"bootstrap_room": None}, False),
    ],
)
def test_what_was_not_refused_here_or_has_no_peer_is_no_errand(
    line: list[Any], state: dict[str, Any], re_enters: bool
) -> None:
    payload("errands").at_decode(Decode().queue, req(**state), re_enters)
    assert line == []


@pytest.mark.parametrize(("exceeds", "re_enters"), [(True, False), (True, True), (False, False)])
def test_the_capacity_s_verdict_is_passed_on(line: list[Any], exceeds: bool, re_enters: bool) -> None:
    errands, decode = payload("errands"), Decode()
    assert errands.over_capacity(decode.queue, req(to_finish=None), exceeds, re_enters) is exceeds
    assert len(line) == (exceeds and not re_enters)


def test_nothing_but_the_lengths_leaves_the_engine(line: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    secret = "the prompt of somebody"
    caplog.set_level(logging.DEBUG)
    errands, decode = payload("errands"), Decode()
    errands.at_decode(decode.queue, req(message=f"{secret}: {LENGTHS}, {secret}", rid=secret))
    errands.at_decode(decode.queue, req(message=secret, rid=secret))
    Receiver.wire.broken = {1}
    errands.deliver(decode.queue, line[:1], {})
    Receiver.wire.broken = set()
    errands.deliver(decode.queue, line, {})
    assert [parts[-1] for _, parts in Receiver.wire.sent] == [LENGTHS.encode(), b""]
    assert "prefill is not told" in caplog.text
    assert secret not in caplog.text + repr(Receiver.wire.sent)


def test_a_full_line_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    errands, decode = payload("errands"), Decode()
    monkeypatch.setattr(errands, "MOST", 3)
    monkeypatch.setattr(errands, "_run", lambda queue, line: None)
    for room in range(10):
        errands.at_decode(decode.queue, req(room))
    assert decode.queue._pdguard_errands.qsize() == 3


def wait_for(done: Any) -> bool:
    end = time.monotonic() + 5
    while not done() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(done())


def test_one_thread_tells_of_all_and_outlives_what_breaks() -> None:
    errands, decode = payload("errands"), Decode()
    before = threading.active_count()
    Receiver.wire.broken = {1}
    errands.at_decode(decode.queue, req(1))
    assert wait_for(lambda: len(Receiver.made) == 1)
    Receiver.wire.broken = set()
    threads = [
        threading.Thread(target=lambda n=n: errands.at_decode(decode.queue, req(n))) for n in range(2, 30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wait_for(lambda: len(Receiver.wire.sent) == 28)
    assert threading.active_count() == before + 1
    assert [t.daemon for t in threading.enumerate() if t.name == "pdguard-errands"][-1]


def test_the_scheduler_does_not_wait_for_a_slow_server() -> None:
    errands, decode = payload("errands"), Decode()
    gate = threading.Event()

    def ensure(address: str) -> bool:
        gate.wait(5)
        return True

    decode.manager.try_ensure_parallel_info = ensure
    begun = time.monotonic()
    for room in range(1, 50):
        errands.at_decode(decode.queue, req(room))
    assert time.monotonic() - begun < 1
    assert Receiver.wire.sent == []
    gate.set()
    assert wait_for(lambda: len(Receiver.wire.sent) == 49)


def test_what_waits_is_tried_again_at_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    errands, decode = payload("errands"), Decode()
    monkeypatch.setattr(errands, "PAUSE", 0.05)
    monkeypatch.setattr(errands, "REST", 0.0)
    decode.known = set()
    errands.at_decode(decode.queue, req(1))
    assert wait_for(lambda: len(decode.asked) >= 2)
    tries = len(decode.asked)
    for room in range(2, 6):
        errands.at_decode(decode.queue, req(room))
    assert wait_for(decode.queue._pdguard_errands.empty)
    assert len(decode.asked) - tries <= 4 + 5
    decode.known = {ADDRESS}
    assert wait_for(lambda: len(Receiver.wire.sent) == 5)


class Held:
    """A receiver whose request is over, while its pages are held."""

    def __init__(self, safe: bool) -> None:
        self.cleared = 0
        self.failures: list[tuple[int, str]] = []
        self.kv_mgr = SimpleNamespace(
            is_abort_release_safe=lambda room, acks: safe and acks == 2,
            record_failure=lambda room, why: self.failures.append((room, why)),
        )

    def clear(self) -> None:
        self.cleared += 1


def held(decode: Decode, receiver: Held, room: int | None = R, acks: int = 2) -> None:
    entry = SimpleNamespace(req=SimpleNamespace(bootstrap_room=room), kv_receiver=receiver)
    transfer = SimpleNamespace(_deferred_releases=[(entry, 0.0, 5, acks)])
    decode.queue.transfer_queue = transfer


def test_a_request_that_has_the_room_of_held_pages_parts_it_from_them() -> None:
    errands, decode, receiver = payload("errands"), Decode(), Held(safe=True)
    held(decode, receiver)
    for _ in range(2):
        errands.at_decode(decode.queue, req(to_finish=None))
    receiver.clear()
    assert (receiver.cleared, receiver.failures) == (1, [])


@pytest.mark.parametrize(("safe", "acks"), [(False, 2), (True, 0)])
def test_while_prefill_may_write_the_room_stays_failed(safe: bool, acks: int) -> None:
    errands, decode, receiver = payload("errands"), Decode(), Held(safe)
    held(decode, receiver, acks=acks)
    errands.at_decode(decode.queue, req(to_finish=None))
    receiver.clear()
    assert receiver.cleared == 0
    assert receiver.failures == [(R, errands.STILL_HELD)]


@pytest.mark.parametrize(
    "given", [req(8, to_finish=None), req(None, to_finish=None), req()], ids=["other room", "none", "refused"]
)
def test_other_requests_part_nothing(given: Any, line: list[Any]) -> None:
    errands, decode, receiver = payload("errands"), Decode(), Held(safe=True)
    held(decode, receiver, room=given.bootstrap_room if given.bootstrap_room is None else R)
    errands.at_decode(decode.queue, given)
    receiver.clear()
    assert receiver.cleared == 1
