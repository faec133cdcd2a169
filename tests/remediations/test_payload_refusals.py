"""Prefill's door, X6: in whatever order two halves refuse, the other one ends, and no other request does."""

from __future__ import annotations

import queue
import random
import threading
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.remediations.engine import KVPoll
from tests.remediations.payload import payload
from tests.remediations.refusing import (
    FAKE,
    LENGTHS,
    Clock,
    Manager,
    NixlManager,
    Prefill,
    asks,
    stand_in,
    word,
)

R = 7


@pytest.fixture(autouse=True)
def _engine(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(payload("refusals"), "time", made)
    return made


FAILED_HERE = [str(R).encode(), b"0", b"-1"]


def told(prefill: Prefill) -> list[int]:
    """The decode ranks that were told of a failure, by number."""
    return [int(endpoint.rpartition(":")[2]) - 20000 for endpoint, _ in prefill.manager.sent]


def test_a_handshake_that_comes_after_the_refusal_is_answered_as_failed() -> None:
    prefill = Prefill()
    prefill.refuse(R)
    assert prefill.kinds() == {R: "refused here"}
    prefill.take(asks(R))
    assert prefill.manager.sent == [("tcp://10.0.1.1:20000", FAILED_HERE)]
    assert (prefill.manager.transfer_infos, prefill.manager.request_status, prefill.kinds()) == ({}, {}, {})
    assert prefill.manager.req_to_decode_prefix_len == {}


def test_a_handshake_that_is_in_is_answered_by_the_refusal_and_cleaned_by_the_next_message() -> None:
    prefill = Prefill()
    prefill.take(asks(R))
    assert prefill.manager.request_status == {R: KVPoll.WaitingForInput}
    prefill.refuse(R)
    assert prefill.manager.sent == [("tcp://10.0.1.1:20000", FAILED_HERE)]
    assert prefill.manager.request_status == {}
    prefill.take([b"ABORT", b"1", b"ip", b"1"])
    assert (prefill.manager.transfer_infos, prefill.manager.req_to_decode_prefix_len) == ({}, {})
    assert prefill.kinds() == {}


def test_nixl_is_told_with_the_reason() -> None:
    prefill = Prefill(NixlManager, "nixl")
    prefill.refuse(R)
    prefill.take(asks(R))
    ((_, parts),) = prefill.manager.sent
    reason = f"{payload('answers').BY_PREFILL}: {LENGTHS}"
    assert parts == [b"KV_STATUS", *FAILED_HERE, reason.encode()]


@pytest.mark.parametrize("first", range(2))
def test_every_rank_of_decode_is_told_once_and_no_dummy(first: int) -> None:
    prefill = Prefill(ranks=3)
    frames = [asks(R, 0), asks(R, 1), asks(R, 2, b"dummy")]
    for frame in frames[:first]:
        prefill.take(frame)
    prefill.refuse(R)
    for frame in frames[first:]:
        prefill.take(frame)
    assert told(prefill) == [0, 1]


def test_the_word_of_decode_ends_the_sender_that_comes_later_and_the_one_that_is_there() -> None:
    for first in (True, False):
        prefill = Prefill(ranks=2)
        if first:
            prefill.take(word(R))
            sender = prefill.admit(R)
        else:
            sender = prefill.admit(R)
            prefill.take(word(R))
        prefill.take(word(R, 1))
        assert sender.poll() == KVPoll.Failed
        assert sender.clear() == f"{payload('answers').BY_DECODE}: {LENGTHS}"
        assert prefill.manager.sent == []
        again = prefill.admit(R)
        assert again.poll() == KVPoll.Bootstrapping


def test_a_word_between_the_sender_and_the_scheduler_s_look() -> None:
    prefill = Prefill(ranks=2)
    req = prefill.open(R)
    prefill.take(word(R, 0))
    sender = prefill.met(req)
    assert sender.poll() == KVPoll.Failed
    sender.clear()
    prefill.take(word(R, 1))
    assert prefill.kinds() == {R: "over"}
    assert prefill.admit(R).poll() == KVPoll.Bootstrapping


def test_a_word_that_comes_when_the_sender_is_gone_is_of_the_same_request() -> None:
    prefill = Prefill(ranks=2)
    prefill.take(word(R, 0))
    prefill.admit(R).clear()
    prefill.take(word(R, 1))
    assert prefill.admit(R).poll() == KVPoll.Bootstrapping


def test_an_endpoint_that_is_there_twice_is_told_once() -> None:
    prefill = Prefill()
    info = SimpleNamespace(endpoint="10.0.1.1", dst_port=20000, is_dummy=lambda: False)
    payload("answers").answer(prefill.manager, R, {"a": info, "b": info}, "")
    assert told(prefill) == [0]


def test_what_two_threads_decide_is_decided_under_one_lock() -> None:
    """None of them goes on while another one is about it."""
    decisions: list[Any] = [
        lambda p: p.refuse(R),
        lambda p: p.met(p.open(R)),
        lambda p: p.take(word(R)),
        lambda p: p.take(asks(R)),
    ]
    for decide in decisions:
        prefill = Prefill()
        with payload("refusals").doors(prefill.manager).lock:
            thread = threading.Thread(target=decide, args=(prefill,))
            thread.start()
            thread.join(0.05)
            assert thread.is_alive()
            assert prefill.kinds() == {}
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("asked", [1, 2])
def test_a_room_that_decode_has_asked_for_is_not_ended_by_a_late_word(asked: int) -> None:
    prefill = Prefill(ranks=2)
    sender = prefill.admit(R)
    for rank in range(asked):
        prefill.take(asks(R, rank))
    prefill.take(word(R, 0))
    assert sender.poll() in (KVPoll.Bootstrapping, KVPoll.WaitingForInput)


def test_a_word_that_decode_has_taken_back_by_asking_ends_nothing() -> None:
    prefill = Prefill()
    prefill.take(word(R))
    prefill.take(asks(R))
    assert prefill.admit(R).poll() == KVPoll.WaitingForInput
    assert prefill.kinds() == {}


@pytest.mark.parametrize(("length", "ends"), [(9, True), (8, False), (5, False), (0, True)])
def test_a_request_of_another_length_is_not_the_one_that_decode_has_refused(length: int, ends: bool) -> None:
    """The refused one's other half may never come, and its number again with another prompt."""
    for first in range(3):
        prefill = Prefill(ranks=2)
        if first == 0:
            prefill.take(word(R))
        req = prefill.open(R, length)
        if first == 1:
            prefill.take(word(R))
        sender = prefill.met(req)
        if first == 2:
            prefill.take(word(R))
        assert sender.poll() == (KVPoll.Failed if ends else KVPoll.Bootstrapping)
        assert prefill.kinds() == {R: "over"}


@pytest.mark.parametrize(
    ("pages", "there", "answered"), [(3, 0, True), (2, 0, False), (2, 1, True), (1, 4, False), (0, 0, True)]
)
def test_a_handshake_for_fewer_tokens_is_not_of_the_one_that_prefill_has_refused(
    pages: int, there: int, answered: bool
) -> None:
    """9 tokens were refused, a page has 4; `there` are tokens that decode has already."""
    prefill = Prefill()
    manager = prefill.manager
    prefill.refuse(R)
    info = SimpleNamespace(endpoint="10.0.1.1", dst_port=20000, is_dummy=False, dst_kv_indices=range(pages))
    manager.transfer_infos[R] = {b"20000": info}
    manager.req_to_decode_prefix_len[R] = there
    prefill.doors.bootstrapped(manager, R)
    assert bool(manager.sent) is answered
    assert manager.request_status == ({} if answered else {R: KVPoll.WaitingForInput})
    assert prefill.kinds() == {}


def test_a_transfer_that_is_under_way_is_never_ended() -> None:
    for status in (KVPoll.Transferring, KVPoll.Success):
        prefill = Prefill()
        sender = prefill.admit(R)
        prefill.manager.request_status[R] = status
        prefill.take(word(R))
        prefill.refuse(R)
        assert sender.poll() == status
        assert prefill.manager.sent == []


def test_another_request_of_the_number_keeps_its_room_when_one_is_refused() -> None:
    """Numbers may be the client's: whoever sends one twice must not end the scheduler."""
    prefill = Prefill()
    sender = prefill.admit(R)
    prefill.refuse(R)
    assert sender.poll() == KVPoll.Bootstrapping
    prefill.take(asks(R))
    prefill.refuse(R)
    assert sender.poll() == KVPoll.WaitingForInput
    assert prefill.manager.sent == []


def test_a_sender_that_is_over_does_not_count() -> None:
    prefill = Prefill()
    sender = prefill.admit(R)
    sender.clear()
    prefill.take(asks(R))
    prefill.refuse(R)
    assert told(prefill) == [0]


def test_what_decode_has_taken_back_is_cleaned_and_not_answered() -> None:
    prefill = Prefill()
    prefill.take(asks(R))
    prefill.take([b"ABORT", str(R).encode(), b"10.0.1.1", b"20000"])
    prefill.manager.record_failure(R, "aborted")
    prefill.refuse(R)
    assert prefill.manager.sent == []
    prefill.take(word(99))
    tables = prefill.manager.request_status, prefill.manager.transfer_infos, prefill.manager.failure_records
    assert tables == ({}, {}, {})


def test_both_refuse_and_nothing_stays_but_that_it_is_over() -> None:
    for first in range(3):
        prefill = Prefill(ranks=2)
        steps: list[Any] = [lambda p: p.take(word(R, 0)), lambda p: p.take(word(R, 1))]
        steps.insert(first, lambda p: p.refuse(R))
        for step in steps:
            step(prefill)
        assert prefill.kinds() == {R: "over"}
        assert prefill.admit(R).poll() == KVPoll.Bootstrapping
        prefill.take(asks(R, 0))
        prefill.take(asks(R, 1))
        assert prefill.manager.request_status == {R: KVPoll.WaitingForInput}


def test_a_rank_that_says_it_twice_says_it_of_two_requests() -> None:
    prefill = Prefill(ranks=2)
    prefill.refuse(R)
    prefill.take(word(R, 0))
    prefill.take(word(R, 1))
    prefill.take(word(R, 0))
    assert prefill.kinds() == {R: "refused there"}
    prefill.take(word(R, 1))
    assert prefill.admit(R).poll() == KVPoll.Failed


def test_memory_has_an_end(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload("refusals"), "MOST", 5)
    prefill = Prefill()
    for room in range(20):
        prefill.refuse(room)
    assert sorted(prefill.kinds()) == [15, 16, 17, 18, 19]
    for room in range(20, 40):
        prefill.take(word(room))
    assert sorted(prefill.kinds()) == [35, 36, 37, 38, 39]


def test_what_is_old_is_forgotten_and_harms_nobody(clock: Clock) -> None:
    refusals = payload("refusals")
    prefill = Prefill()
    prefill.take(word(1))
    prefill.refuse(2)
    clock.now += refusals.HEARD
    assert prefill.admit(1).poll() == KVPoll.Bootstrapping
    clock.now += refusals.KEPT - refusals.HEARD
    prefill.take(asks(2))
    assert prefill.manager.request_status[2] == KVPoll.WaitingForInput
    assert prefill.manager.sent == []
    prefill.refuse(3)
    assert sorted(prefill.kinds()) == [3]


def test_senders_are_not_kept_alive() -> None:
    import gc

    prefill = Prefill()
    prefill.admit(R)
    gc.collect()
    assert dict(payload("refusals").doors(prefill.manager).senders) == {}


@pytest.mark.parametrize(
    ("backend", "state"),
    [
        ("mori", {}),
        ("fake", {}),
        ("mooncake", {"bootstrap_host": FAKE}),
        ("mooncake", {"bootstrap_room": None}),
    ],
)
def test_who_cannot_be_told_is_left_alone(backend: str, state: dict[str, Any]) -> None:
    prefill = Prefill(backend=backend)
    room = state.pop("bootstrap_room", R)
    prefill.refuse(room, **state)
    req = prefill.request(room, disagg_kv_sender=object(), **state)
    prefill.doors.met(prefill.queue, req)
    assert "_pdguard_doors" not in prefill.manager.__dict__


def test_where_decode_asks_last_nothing_is_told() -> None:
    prefill = Prefill()
    prefill.manager.defer_decode_allocation = True  # type: ignore[attr-defined]
    prefill.refuse(R)
    assert "_pdguard_doors" not in prefill.manager.__dict__


def test_a_request_that_comes_back_is_not_refused() -> None:
    prefill = Prefill()
    prefill.refuse(R, is_retracted=True)
    assert "_pdguard_doors" not in prefill.manager.__dict__


def test_an_engine_that_knows_what_it_refuses_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    utils = sys.modules["sglang.srt.disaggregation.utils"]
    monkeypatch.setattr(utils, "is_unadmitted_reject", lambda req: False, raising=False)
    prefill = Prefill()
    prefill.refuse(R)
    assert "_pdguard_doors" not in prefill.manager.__dict__


@pytest.mark.parametrize("exceeds", [True, False])
def test_the_capacity_s_verdict_is_passed_on(exceeds: bool) -> None:
    prefill = Prefill()
    assert prefill.doors.over_capacity(prefill.queue, prefill.request(R), exceeds) is exceeds
    assert ("_pdguard_doors" in prefill.manager.__dict__) is exceeds


MALFORMED = (
    [b"ABORT", b"x", b"", b"", b"", b"", b"pdguard-refused"],
    [b"ABORT", b"\xff", b"", b"", b"", b"", b"pdguard-refused", b""],
    [b"ABORT", b"7", b"\xff", b"\xff", b"\xff", b"\xff", b"pdguard-refused", b"\xff\xfe"],
    [b"ABORT", b"7", b"", b"", b"", b"", b"pdguard-refused"],
)
FOREIGN = (
    [b"ABORT"],
    [b"ABORT", b"7", b"ip", b"1", b"3"],
    [b"ABORT", *[b""] * 5, b"other"],
    [b""],
    [b"\xff"],
)


@pytest.mark.parametrize("parts", MALFORMED)
def test_a_word_that_cannot_be_read_ends_no_thread(parts: list[bytes]) -> None:
    assert payload("refusals").heard(Manager(), parts) is True


@pytest.mark.parametrize("parts", FOREIGN)
def test_other_messages_are_the_engine_s(parts: list[bytes]) -> None:
    assert payload("refusals").heard(Manager(), parts) is False


SECRET = "the prompt of somebody"


@pytest.mark.parametrize("kind", [Manager, NixlManager])
def test_nothing_but_the_lengths_leaves_the_engine(
    kind: type[Manager], caplog: pytest.LogCaptureFixture
) -> None:
    prefill = Prefill(kind, "nixl")
    prefill.refuse(R, f"{SECRET}: bad grammar", rid=SECRET)
    prefill.take(asks(R))
    prefill.refuse(R + 1, f"{SECRET}. {LENGTHS}. {SECRET}", rid=SECRET)
    prefill.take(asks(R + 1))
    sender = prefill.admit(R + 2)
    prefill.take(word(R + 2, 0, SECRET))
    assert sender.clear() == payload("answers").BY_DECODE
    prefill.manager._connect = None  # type: ignore[assignment, method-assign]
    prefill.refuse(R + 3, SECRET, rid=SECRET)
    prefill.take(asks(R + 3))
    assert "was not told" in caplog.text
    assert SECRET not in caplog.text + repr(prefill.manager.sent)


def test_a_peer_that_cannot_be_reached_ends_nothing_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload("answers"), "MOMENT", 0.01)
    prefill = Prefill(ranks=2)
    busy = prefill.manager._socket_send_locks["tcp://10.0.1.1:20000"]
    prefill.take(asks(R, 0))
    prefill.refuse(R)
    with busy:
        prefill.take(asks(R, 1))
    assert told(prefill) == [1]
    assert "decode at 10.0.1.1 was not told that room 7 is refused" in caplog.text


def test_a_half_that_was_refused_blames_the_request() -> None:
    answers = payload("answers")
    for text in (answers.BY_PREFILL, answers.BY_DECODE):
        assert (
            answers.status(f"KVTransferError(bootstrap_room=7): {text}: {LENGTHS}") is HTTPStatus.BAD_REQUEST
        )
    assert answers.status("KVTransferError: it might be dead") is HTTPStatus.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(("queue_holds", "manager_holds"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("refused", [True, False])
def test_prefill_is_told_of_what_is_held_before_the_client_is(
    queue_holds: bool, manager_holds: bool, refused: bool
) -> None:
    answers, log = payload("answers"), []
    receiver = SimpleNamespace(
        kv_mgr=SimpleNamespace(enable_deferred_decode_kv_release=manager_holds),
        abort_notified=False,
        ensure_abort_notified=lambda: log.append("told"),
    )
    held = SimpleNamespace(kv_receiver=receiver)
    message = f"no: {answers.BY_PREFILL}" if refused else "no"
    found = answers.ended(SimpleNamespace(enable_deferred_kv_release=queue_holds), held, message)
    assert found == (HTTPStatus.BAD_REQUEST if refused else HTTPStatus.INTERNAL_SERVER_ERROR)
    assert log == (["told"] if refused and queue_holds and manager_holds else [])


def test_decode_reads_who_has_failed() -> None:
    answers = payload("answers")
    assert answers.reason(0, -1, None) == answers.BY_PREFILL
    assert answers.reason(0, -1, f"{answers.BY_PREFILL}: {LENGTHS}").endswith(LENGTHS)
    assert answers.reason(0, 0, "broken") == "broken"
    assert answers.reason(0, 3, None) is None
    assert answers.reason(4, -1, None) is None


def test_0_5_19_notes_it_for_a_room_that_is_there_and_leaves_nothing_of_another() -> None:
    answers, manager = payload("answers"), Manager()
    manager.request_status[R] = KVPoll.WaitingForInput
    for room in (R, R + 1):
        manager.record_failure(room, "it might be dead")
        answers.noted(manager, room, -1)
    assert manager.failure_records == {R: answers.BY_PREFILL}
    manager.record_failure(R, "it might be dead")
    answers.noted(manager, R, 0)
    assert manager.failure_records == {R: "it might be dead"}


def test_0_5_19_s_nixl_takes_the_statuses_of_its_prefill() -> None:
    answers, manager = payload("answers"), Manager()
    manager.request_status.update({R: KVPoll.WaitingForInput, R + 1: KVPoll.WaitingForInput})
    failed = [b"KV_STATUS", b"7", b"0", b"-1", answers.BY_PREFILL.encode()]
    assert answers.told(manager, failed)
    assert answers.told(manager, [b"KV_STATUS", b"8", b"4", b"0", b""])
    assert answers.told(manager, [b"KV_STATUS", b"9", b"0", b"0", b""])
    assert answers.told(manager, [b"KV_STATUS", b"x", b"0", b"0"])
    assert manager.request_status == {R: KVPoll.Failed, R + 1: KVPoll.WaitingForInput}
    assert manager.failure_records == {R: answers.BY_PREFILL}
    for parts in ([b"ABORT_ACK", b"7", b"0"], [b"KV_STATUS", b"7"], [b""]):
        assert not answers.told(manager, parts)


@dataclass
class Case:
    """One request of a room, as each half treats it."""

    prefill_refuses: bool
    decode_refuses: bool
    order: list[int]
    """When what happens: prefill's door (0), its look at the sender (1), then the ranks of decode."""


def cases(ranks: int) -> st.SearchStrategy[Case]:
    order = st.permutations(list(range(ranks + 2))).filter(lambda o: o.index(0) < o.index(1))
    return st.builds(Case, st.booleans(), st.booleans(), order)


def steps(prefill: Prefill, room: int, case: Case) -> Any:
    """The steps of one request, one for each `next`; after the last it is judged, and over on both halves."""
    before, req, sender = len(prefill.manager.sent), None, None
    for which in case.order:
        if which == 0 and case.prefill_refuses:
            prefill.refuse(room)
        elif which == 0:
            req = prefill.open(room)
        elif which == 1 and req is not None:
            sender = prefill.met(req)
        elif which > 1:
            prefill.take((word if case.decode_refuses else asks)(room, which - 2))
        yield
    told = [e for e, parts in prefill.manager.sent[before:] if parts[0] == str(room).encode()]
    expected = [f"tcp://10.0.1.1:{20000 + r}" for r in range(prefill.ranks)]
    if case.prefill_refuses:
        assert sorted(told) == ([] if case.decode_refuses else expected)
        assert room not in prefill.manager.request_status
    else:
        assert sender is not None
        assert told == []
        assert sender.poll() == (KVPoll.Failed if case.decode_refuses else KVPoll.WaitingForInput)
        reason = sender.clear()
        assert reason == (f"{payload('answers').BY_DECODE}: {LENGTHS}" if case.decode_refuses else None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 3))
def test_every_order_of_every_event(data: st.DataObject, ranks: int) -> None:
    """Several rooms at once, each used again and again: only what was refused ends, and all of that."""
    prefill = Prefill(ranks=ranks)
    rooms = {room: iter(data.draw(st.lists(cases(ranks), min_size=1, max_size=4))) for room in range(1, 4)}
    running: dict[int, Any] = {}
    while rooms:
        room = data.draw(st.sampled_from(sorted(rooms)))
        if room not in running:
            case = next(rooms[room], None)
            if case is None:
                del rooms[room]
                continue
            running[room] = steps(prefill, room, case)
        if next(running[room], "over") == "over":
            del running[room]
    prefill.take([b"ABORT", b"99", b"ip", b"1"])
    manager = prefill.manager
    tables = manager.request_status, manager.transfer_infos, manager.failure_records
    assert tables == ({}, {}, {})
    assert set(prefill.kinds().values()) <= {"over"}


def test_two_threads_at_once() -> None:
    """The scheduler and the bootstrap thread, each at its pace: a request ends as its halves have it."""
    prefill = Prefill(ranks=2)
    dice = random.Random(6)  # noqa: S311
    plan = {room: (dice.random() < 0.5, dice.random() < 0.5) for room in range(1, 401)}
    frames: queue.Queue[list[bytes] | None] = queue.Queue()
    senders: dict[int, Any] = {}
    broken: list[BaseException] = []

    def bootstrap_thread() -> None:
        try:
            while (frame := frames.get()) is not None:
                prefill.take(frame)
        except BaseException as error:  # noqa: BLE001
            broken.append(error)

    def scheduler() -> None:
        try:
            for room in dice.sample(sorted(plan), len(plan)):
                if plan[room][0]:
                    prefill.refuse(room)
                else:
                    senders[room] = prefill.admit(room)
        except BaseException as error:  # noqa: BLE001
            broken.append(error)

    sent = [((word if plan[room][1] else asks), room, rank) for room in plan for rank in range(2)]
    random.Random(7).shuffle(sent)  # noqa: S311
    threads = [threading.Thread(target=one) for one in (bootstrap_thread, scheduler)]
    for thread in threads:
        thread.start()
    for make, room, rank in sent:
        frames.put(make(room, rank))
    threads[1].join(20)
    frames.put([b"ABORT", b"999", b"ip", b"1"])
    frames.put(None)
    threads[0].join(20)
    assert broken == []
    told: dict[int, int] = {}
    for _, parts in prefill.manager.sent:
        told[int(parts[0])] = told.get(int(parts[0]), 0) + 1
    for room, (here, there) in plan.items():
        assert told.get(room, 0) == (2 if here and not there else 0), room
        if not here:
            assert senders[room].poll() == (KVPoll.Failed if there else KVPoll.WaitingForInput), room
    assert set(prefill.kinds().values()) <= {"over"}


def test_one_memory_for_both_threads() -> None:
    manager, seen = Manager(), []
    gate = threading.Barrier(4)

    def ask() -> None:
        gate.wait()
        seen.append(payload("refusals").doors(manager))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in seen}) == 1
    assert SimpleNamespace(kv_manager=manager).kv_manager is manager
