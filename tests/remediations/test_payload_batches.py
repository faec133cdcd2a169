"""Bounded calls of Mooncake: all pages once, none twice, and nothing after a call that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.remediations.payload import payload

pytestmark = pytest.mark.usefixtures("engine")

VARIABLE = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
LAYERS = [(1000, 5000, 10), (2000, 6000, 100)]


def manager(calls: list[Any], *statuses: int) -> Any:
    left = list(statuses)

    def transfer(session: str, blocks: list[tuple[int, int, int]]) -> int:
        calls.append((session, blocks))
        return left.pop(0) if left else 0

    return SimpleNamespace(_transfer_data=transfer)


def send(owner: Any, pages: list[int], targets: list[int], device: Any = None, buffers: Any = None) -> int:
    at_once = lambda layers: -7  # noqa: E731 - what the engine itself would have done
    return int(payload("batches").send(owner, "s", LAYERS, pages, targets, device, buffers, at_once))


@pytest.mark.parametrize("bound", [None, "0", "-1", "3", "4"])
def test_within_the_bound_the_engine_sends_as_ever(
    bound: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if bound is not None:
        monkeypatch.setenv(VARIABLE, bound)
    calls: list[Any] = []
    assert send(manager(calls), [1, 2, 3], [4, 5, 6]) == -7
    assert calls == []


def test_a_long_transfer_goes_in_calls_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    calls: list[Any] = []
    assert send(manager(calls), [1, 2, 3, 9, 10], [4, 5, 6, 7, 8]) == 0
    assert calls == [
        ("s", [(1010, 5040, 20), (2100, 6400, 200)]),
        ("s", [(1030, 5060, 10), (1090, 5070, 10), (2300, 6600, 100), (2900, 6700, 100)]),
        ("s", [(1100, 5080, 10), (3000, 6800, 100)]),
    ]


def test_buffers_with_pages_of_their_own_get_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    calls: list[Any] = []
    assert send(manager(calls), [1, 2, 3], [4, 5, 6], [7, 8, 9], {6000}) == 0
    assert calls == [
        ("s", [(1010, 5040, 20), (2100, 6700, 200)]),
        ("s", [(1030, 5060, 10), (2300, 6900, 100)]),
    ]


def test_a_call_that_fails_is_the_last_and_its_status_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    calls: list[Any] = []
    assert send(manager(calls, 0, -3, 0), [1, 2, 3], [4, 5, 6]) == -3
    assert len(calls) == 2


def test_a_value_that_is_no_number_is_said_once_and_bounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "many")
    owner = manager([])
    with pytest.warns(UserWarning, match=VARIABLE):
        assert payload("batches").limit(owner) == 0
    assert payload("batches").limit(owner) == 0


def test_the_bound_of_a_manager_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = manager([])
    monkeypatch.setenv(VARIABLE, "5")
    assert payload("batches").limit(owner) == 5
    monkeypatch.setenv(VARIABLE, "6")
    assert payload("batches").limit(owner) == 5
    assert payload("batches").limit(manager([])) == 6


class Engine:
    """Mooncake's own engine: takes down each call; the `failing`th one fails."""

    def __init__(self, failing: int = 0) -> None:
        self.calls: list[list[tuple[int, int, int]]] = []
        self._failing = failing

    def batch_transfer_sync(self, _session: str, sources: Any, targets: Any, lengths: Any) -> int:
        return self.transfer("s", list(zip(sources, targets, lengths, strict=True)))

    def transfer(self, _session: str, blocks: list[tuple[int, int, int]]) -> int:
        self.calls.append(list(blocks))
        return -9 if len(self.calls) == self._failing else 0

    def manager(self, bound: int | None) -> Any:
        """As releases have it that read the bound themselves."""
        return SimpleNamespace(engine=self, _transfer_data=self.transfer, max_transfer_batch_indices=bound)


def bytes_of(calls: list[list[tuple[int, int, int]]]) -> list[tuple[int, int]]:
    """Every byte that is sent, by its addresses, in order."""
    return [(a + i, b + i) for blocks in calls for a, b, size in blocks for i in range(size)]


RUNS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(
    runs=RUNS,
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    bound=st.integers(1, 9),
    per=st.integers(1, 3),
)
def test_calls_of_the_bound_send_the_same_bytes(
    runs: list[int], sizes: list[int], bound: int, per: int
) -> None:
    layers, all_blocks = [], []
    for number, size in enumerate(sizes):
        at, blocks = number * 10_000, []
        for run in runs:
            blocks.append((at, at + 500_000, run * size))
            at += run * size + 7
        layers.append((blocks, size))
        all_blocks += blocks
    engine = Engine()
    assert payload("batches").send_blocks(engine.manager(bound), "s", all_blocks, layers, per) == 0
    assert sorted(bytes_of(engine.calls)) == sorted(bytes_of([all_blocks]))
    for blocks in engine.calls:
        for number, size in enumerate(sizes):
            own = sum(length for source, _, length in blocks if source // 10_000 == number)
            assert own <= bound * per * size
            assert all(length % size == 0 for source, _, length in blocks if source // 10_000 == number)
    assert len(engine.calls) == -(-sum(runs) // (bound * per))


def test_a_buffer_with_more_pages_than_the_others_is_sent_whole() -> None:
    few, many = [(0, 100, 20)], [(1000, 2000, 30), (1100, 2100, 20)]
    engine = Engine()
    layers = [(few, 10), (many, 10)]
    assert payload("batches").send_blocks(engine.manager(2), "s", few + many, layers) == 0
    assert engine.calls == [
        [(0, 100, 20), (1000, 2000, 20)],
        [(1020, 2020, 10), (1100, 2100, 10)],
        [(1110, 2110, 10)],
    ]


@pytest.mark.parametrize("bound", [None, 0, -3])
def test_without_a_bound_every_path_makes_the_engine_s_one_call(
    bound: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    engine, blocks = Engine(), [(0, 100, 30), (50, 150, 10)]

    looked_at = (pytest.fail("layers are not looked at") for _ in range(1))
    assert payload("batches").send_blocks(engine.manager(bound), "s", blocks, looked_at) == 0
    assert payload("batches").send_slices(engine.manager(bound), "s", [0, 50], [100, 150], [30, 10], 4) == 0
    assert engine.calls == [blocks, blocks]


def test_nothing_is_sent_after_a_call_that_failed_on_any_path() -> None:
    blocks = [(0, 100, 60)]
    engine = Engine(failing=2)
    assert payload("batches").send_blocks(engine.manager(1), "s", blocks, [(blocks, 10)]) == -9
    assert engine.calls == [[(0, 100, 10)], [(10, 110, 10)]]
    engine = Engine(failing=2)
    sliced = payload("batches").send_slices(engine.manager(1), "s", [0, 1, 2, 3], [4, 5, 6, 7], [9] * 4, 1)
    assert (sliced, len(engine.calls)) == (-9, 2)


def test_slices_are_cut_between_pages_only() -> None:
    engine = Engine()
    sources, targets = list(range(0, 120, 10)), list(range(1000, 1120, 10))
    assert payload("batches").send_slices(engine.manager(2), "s", sources, targets, [3] * 12, 3) == 0
    assert [len(call) for call in engine.calls] == [6, 6]
    assert [block for call in engine.calls for block in call] == list(
        zip(sources, targets, [3] * 12, strict=True)
    )


def test_pages_of_a_buffer_are_the_runs_that_both_sides_share() -> None:
    assert payload("batches").pages_of(1000, 5000, 10, [1, 2, 5], [7, 8, 9]) == (
        [(1010, 5070, 20), (1050, 5090, 10)],
        10,
    )
