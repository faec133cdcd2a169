"""Ranks hold together, release together, and meet in a collective or enter none."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remediations import ranks
from tests.remediations.payload import payload
from tests.remediations.ranks import Values, World

agree, holds = payload("agree"), payload("holds")


@pytest.fixture(scope="module", autouse=True)
def _torch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, module in ranks.torch().items():
            patch.setitem(sys.modules, name, module)
        yield


class Manager:
    """Acknowledgements by room."""

    def __init__(self, on: bool = True, acks: dict[str, int] | None = None) -> None:
        self.enable_deferred_decode_kv_release = on
        self.acks = acks or {}

    def register_deferred_abort_room(self, room: str) -> None:
        self.acks[room] = 0

    def is_abort_release_safe(self, room: str, required: int) -> bool:
        return self.acks.get(room, 0) >= required


class Receiver:
    """One that has met its prefill, unless there are no `infos`."""

    def __init__(self, manager: Manager, infos: Any = ("one", "two"), notified: bool = False) -> None:
        self.kv_mgr, self.bootstrap_room, self.abort_notified = manager, "r", notified
        self.init_time = 1.0
        self.told = 0
        if infos is not None:
            self.bootstrap_infos = infos

    def _send_abort_notification(self) -> None:
        self.told += 1

    def ensure_abort_notified(self) -> None:
        holds.notify(self)


def failed(world: World, receiver: Receiver) -> Callable[[], tuple[bool, int]]:
    """What a rank of 0.5.19 or 0.5.20 does with a failed transfer: whether it holds, what it waits for."""
    queue = SimpleNamespace(gloo_group=world, enable_deferred_kv_release=True)

    def work() -> tuple[bool, int]:
        agree.settle(queue, SimpleNamespace(kv_receiver=receiver))
        return (holds.told(receiver), agree.required(receiver))

    return work


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_one_must_hold_all_hold(size: int) -> None:
    world = World(size)
    receivers = [Receiver(Manager()), *(Receiver(Manager(), None) for _ in range(size - 1))]
    found = world.run(*(failed(world, one) for one in receivers))
    assert found == [(True, 2), *[(True, 0)] * (size - 1)]
    assert [one.told for one in receivers] == [1, *[0] * (size - 1)]
    assert world.entered == ([("MAX", 1)] if size > 1 else [])


def test_what_none_must_hold_none_holds() -> None:
    world = World(2)
    found = world.run(*(failed(world, Receiver(Manager(), None)) for _ in range(2)))
    assert found == [(False, 0)] * 2


@pytest.mark.parametrize("word", [True, False])
def test_what_was_settled_stands(word: bool) -> None:
    receiver = Receiver(Manager(), notified=not word)
    vars(receiver)["_pdguard_all_hold"] = word
    assert holds.told(receiver) is word
    assert receiver.told == 0


@pytest.mark.parametrize(("queue_on", "manager_on"), [(False, True), (True, False), (False, False)])
def test_without_the_hold_there_is_nothing_to_settle(queue_on: bool, manager_on: bool) -> None:
    world = World(2)
    receivers = [Receiver(Manager(manager_on)), Receiver(Manager(manager_on), None)]
    world.run(
        *(
            lambda one=one: agree.settle(
                SimpleNamespace(gloo_group=world, enable_deferred_kv_release=queue_on),
                SimpleNamespace(kv_receiver=one),
            )
            for one in receivers
        )
    )
    assert world.entered == []
    assert all("_pdguard_all_hold" not in vars(one) for one in receivers)


@pytest.mark.parametrize("mine", [True, False, 1, 0, None])
def test_a_single_rank_asks_nobody(mine: Any) -> None:
    world = World(1)
    queue = SimpleNamespace(gloo_group=world)
    assert agree.one_holds(queue, mine) is bool(mine)
    assert world.entered == []


def test_any_rank_is_enough_to_hold() -> None:
    world = World(3)
    queue = SimpleNamespace(gloo_group=world)
    for said in ((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 1, 1)):
        found = world.run(*(lambda one=one: agree.one_holds(queue, bool(one)) for one in said))
        assert found == [any(said)] * 3


Entry = tuple[bool, bool, bool]
"""Of one held request on one rank: acknowledged, out of time, received into host memory."""


def held(world: World, entries: list[Entry], longer: bool, host: bool | None = True) -> Any:
    """The queue of a rank at the time 10; `longer` entries are those of 0.5.22."""
    made: list[tuple[Any, ...]] = []
    for number, (acknowledged, late, staged) in enumerate(entries):
        room = f"r{number}"
        manager = Manager(acks={room: 2 if acknowledged else 1})
        decode_req = SimpleNamespace(
            kv_receiver=SimpleNamespace(kv_mgr=manager),
            req=SimpleNamespace(bootstrap_room=room),
            host_staged=staged,
        )
        times = (10.0 if late else 10.1,)
        made.append((decode_req, *((100.0,) if longer else ()), *times, 7, 2))
    queue = SimpleNamespace(gloo_group=world, _deferred_releases=made)
    if host is not None:
        queue.enable_host_receive = host
    return queue


@pytest.mark.parametrize("longer", [False, True])
def test_the_answer_or_the_deadline_of_a_single_rank(longer: bool) -> None:
    world = World(1)
    entries = [(acknowledged, late, False) for acknowledged in (False, True) for late in (False, True)]
    assert list(agree.ready(held(world, entries, longer), 10.0)) == [False, True, True, True]
    assert world.entered == []


def test_what_is_received_into_host_memory_is_not_spoken_of() -> None:
    world = World(1)
    entries = [(True, True, True), (False, False, False), (False, True, True), (True, False, False)]
    assert list(agree.ready(held(world, entries, True), 10.0)) == [False, True]
    for host in (False, None):
        assert len(list(agree.ready(held(world, entries, False, host), 10.0))) == 4


def test_nothing_held_and_nothing_to_agree_on() -> None:
    world = World(2)
    for entries in ([], [(True, True, True)]):
        assert list(agree.ready(held(world, entries, True), 10.0)) == []
    assert world.entered == []


@given(data=st.data(), size=st.integers(2, 3), count=st.integers(1, 5), longer=st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_all_may_release_is_released_by_all(
    data: st.DataObject, size: int, count: int, longer: bool
) -> None:
    world = World(size)
    staged = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    mine = st.tuples(st.booleans(), st.booleans())
    ranks = [[(*data.draw(mine), staged[place]) for place in range(count)] for _ in range(size)]
    queues = [held(world, entries, longer) for entries in ranks]
    found = world.run(*(lambda one=one: list(agree.ready(one, 10.0)) for one in queues))
    wanted = [
        all(ranks[rank][place][0] or ranks[rank][place][1] for rank in range(size))
        for place in range(count)
        if not staged[place]
    ]
    assert found == [wanted] * size
    assert world.entered == ([("MIN", len(wanted))] if wanted else [])


def test_a_rank_that_holds_for_another_alone_waits_for_the_other() -> None:
    world = World(2)
    receivers = [Receiver(Manager(), notified=True), Receiver(Manager(), None)]
    needs = [agree.required(one) for one in receivers]
    assert needs == [2, 0]

    def ready(rank: int, acks: int) -> list[bool]:
        decode_req = SimpleNamespace(
            kv_receiver=SimpleNamespace(kv_mgr=Manager(acks={"r": acks}) if rank == 0 else Manager()),
            req=SimpleNamespace(bootstrap_room="r"),
        )
        entry = (decode_req, 99.0, 7, needs[rank])
        return list(agree.ready(SimpleNamespace(gloo_group=world, _deferred_releases=[entry]), 10.0))

    for acks, wanted in ((1, [False]), (2, [True])):
        found = world.run(*(functools.partial(ready, rank, acks) for rank in (0, 1)))
        assert found == [wanted, wanted]


def test_an_error_of_the_group_reaches_the_scheduler() -> None:
    class Broken(World):
        def all_reduce(self, values: Values, op: str) -> Values:
            raise RuntimeError("a peer is gone")

    queue = held(Broken(2), [(True, True, False)], False)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        agree.ready(queue, 10.0)
    assert len(queue._deferred_releases) == 1
