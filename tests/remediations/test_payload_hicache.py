"""Ranks end a request together or not at all, and no page is given back while a copy reads it."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remediations import ranks
from tests.remediations.engine import KVPoll
from tests.remediations.payload import payload
from tests.remediations.ranks import World

hicache = payload("hicache")


class Result(enum.Enum):
    PENDING, READY, FAILED = "pending", "ready", "failed"


@dataclass
class Device:
    waited: int = 0

    def synchronize(self) -> None:
        self.waited += 1


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[Device]:
    """Stand-ins for torch and the engine's enumeration."""
    found = Device()
    mixin = ModuleType("sglang.srt.disaggregation.decode_hicache_mixin")
    mixin.__dict__["HiCacheRestoreResult"] = Result
    with pytest.MonkeyPatch.context() as patch:
        for module in (*ranks.torch(get_device_module=lambda: found).values(), mixin):
            patch.setitem(sys.modules, module.__name__, module)
        yield found


def transfers(world: World, *statuses: Result, on: bool = True) -> Any:
    return SimpleNamespace(
        queue=[SimpleNamespace(hicache_restore_status=one) for one in statuses],
        gloo_group=world,
        scheduler=SimpleNamespace(enable_decode_hicache=on),
    )


def said(world: World, polls: list[Any], *ranks: tuple[Result, ...]) -> list[Any]:
    queues = [transfers(world, *one) for one in ranks]
    found = world.run(*[lambda queue=queue: hicache.restored(queue, polls) for queue in queues])
    assert all(one == found[0] for one in found), "the ranks differ"
    return list(found[0])


@pytest.mark.parametrize(
    ("here", "there", "both"),
    [
        (Result.READY, Result.READY, Result.READY),
        (Result.FAILED, Result.READY, Result.FAILED),
        (Result.READY, Result.FAILED, Result.FAILED),
        (Result.FAILED, Result.FAILED, Result.FAILED),
        # As long as one copies into the request's pages, none lets them go.
        (Result.FAILED, Result.PENDING, Result.PENDING),
        (Result.PENDING, Result.READY, Result.PENDING),
    ],
)
def test_what_one_rank_says_counts_for_both(here: Result, there: Result, both: Result) -> None:
    assert said(World(2), [KVPoll.Success], (here,), (there,)) == [both]


STATUS = st.sampled_from(list(Result))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_ranks_never_differ(data: st.DataObject) -> None:
    polls = data.draw(st.lists(st.sampled_from([*map(int, KVPoll), None]), max_size=4))
    ranks = data.draw(
        st.lists(st.tuples(*[STATUS for _ in polls]), min_size=2, max_size=3), label="restores by rank"
    )
    world = World(len(ranks))
    agreed = said(world, polls, *ranks)
    assert [how for how, _ in world.entered] == ["MIN"] * (KVPoll.Success in polls)
    for place, poll in enumerate(polls):
        own = {rank[place] for rank in ranks}
        if poll != KVPoll.Success:
            assert agreed[place] is None
        elif Result.PENDING in own:
            assert agreed[place] is Result.PENDING
        else:
            assert agreed[place] is (Result.FAILED if Result.FAILED in own else Result.READY)


def test_without_the_cache_nobody_is_asked() -> None:
    """The engine then leaves every restore pending."""
    world = World(2)
    assert hicache.restored(transfers(world, Result.PENDING, on=False), [KVPoll.Success]) == [None]


def test_a_single_rank_enters_no_collective() -> None:
    world = World(1)
    world.all_reduce = lambda *_arguments: pytest.fail("there is nobody to ask")  # type: ignore[method-assign]
    assert said(world, [KVPoll.Success], (Result.FAILED,)) == [Result.FAILED]
    assert hicache.has_free_load_back_slot(cached(world, True), 1)


def cached(world: World, *over: bool, stages: int = 1) -> Any:
    def event(query: bool) -> Any:
        return SimpleNamespace(finish_event=SimpleNamespace(query=lambda: query))

    counter = SimpleNamespace(events=[event(True), *map(event, over)])
    cache = SimpleNamespace(
        cache_controller=SimpleNamespace(layer_done_counter=counter), pp_size=stages, checks=0
    )

    def loading_check() -> None:
        cache.checks += 1

    cache.loading_check = loading_check
    return SimpleNamespace(tree_cache=cache, gloo_group=world)


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_copy_begins_on_all_ranks_or_on_none(here: bool, there: bool) -> None:
    world = World(2)
    queues = cached(world, here), cached(world, there)
    found = world.run(*[lambda queue=queue: hicache.has_free_load_back_slot(queue, 1) for queue in queues])
    assert found == [here and there] * 2
    assert [how for how, _ in world.entered] == ["MIN"] * 1


@pytest.mark.parametrize("free", [True, False])
def test_with_pipeline_stages_finished_copies_leave_the_books_on_every_rank(free: bool) -> None:
    queue = cached(World(1), free, stages=2)
    assert hicache.has_free_load_back_slot(queue, 1) is free
    assert queue.tree_cache.checks == 1
    alone = cached(World(1), free)
    hicache.has_free_load_back_slot(alone, 1)
    assert alone.tree_cache.checks == 0


def test_asking_after_a_copy_changes_nothing() -> None:
    cache = cached(World(2), False).tree_cache
    assert [hicache.loaded(cache, index) for index in (-1, 0, 1)] == [True, True, False]
    assert cache.checks == 0
    cache.cache_controller = None
    assert hicache.loaded(cache, 1)


def test_a_request_keeps_the_lock_that_it_took() -> None:
    req = SimpleNamespace(last_node="found again")
    hicache.keep_lock(SimpleNamespace(req=req, prefix_match=SimpleNamespace(last_device_node="locked")))
    assert req.last_node == "locked"


@dataclass
class Copy:
    name: str
    over: list[str]

    def synchronize(self) -> None:
        self.over.append(self.name)


@dataclass
class Manager:
    """Of the copies on the books the first `agreed` are those that all ranks have finished."""

    names: list[str]
    agreed: int = 0
    unannounced: tuple[str, ...] = ()
    over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        copies = [SimpleNamespace(finish_event=Copy(n, self.over), node_ids=[n]) for n in self.names]
        self.cache_controller = SimpleNamespace(ack_write_queue=copies)
        self.ongoing_offload = dict.fromkeys((*self.names, *self.unannounced))

    def check_offload_progress(self) -> None:
        for _ in range(self.agreed):
            done = self.cache_controller.ack_write_queue.pop(0)
            done.finish_event.synchronize()
            del self.ongoing_offload[done.node_ids[0]]


@pytest.mark.parametrize("agreed", [0, 1, 3])
def test_every_copy_of_this_rank_is_over(device: Device, agreed: int) -> None:
    """Also those that other ranks have not, or not yet."""
    before, manager = device.waited, Manager(["a", "b", "c"], agreed)
    hicache.drain(SimpleNamespace(decode_offload_manager=manager))
    assert manager.over == ["a", "b", "c"]
    assert len(manager.ongoing_offload) == 3 - agreed, "what is not agreed on stays on the books"
    assert device.waited == before


def test_a_copy_without_an_event_is_waited_for_with_the_device(device: Device) -> None:
    before = device.waited
    hicache.drain(SimpleNamespace(decode_offload_manager=Manager(["a"], 0, ("lost",))))
    assert device.waited == before + 1


def test_where_nothing_is_offloaded_nothing_is_waited_for(device: Device) -> None:
    before = device.waited
    hicache.drain(SimpleNamespace(decode_offload_manager=None))
    assert device.waited == before


def test_an_error_of_the_check_stops_the_retraction() -> None:
    manager = Manager(["a"])
    manager.check_offload_progress = lambda: 1 / 0  # type: ignore[assignment, method-assign]
    with pytest.raises(ZeroDivisionError):
        hicache.drain(SimpleNamespace(decode_offload_manager=manager))
