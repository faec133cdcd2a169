"""Bounded calls of Mooncake: all pages once, none twice, and nothing after a call that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
