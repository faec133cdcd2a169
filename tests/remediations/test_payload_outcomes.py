"""Outcomes are counted under upstream's names, where metrics are on, and never in the way of a release."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.remediations.payload import payload

outcomes = payload("outcomes")
LABELS = {"model_name": "m", "tp_rank": 0}


class Series:
    """Any of prometheus_client's classes."""

    made: ClassVar[dict[str, Series]] = {}

    def __init__(self, name: str, documentation: str, labelnames: Any, **more: Any) -> None:
        assert name not in self.made, f"{name} twice in one process"
        assert documentation
        self.names, self.more = list(labelnames), more
        self.values: dict[tuple[Any, ...], list[float]] = {}
        self.made[name] = self

    def labels(self, **given: Any) -> Series:
        assert list(given) == self.names
        self._now = self.values.setdefault(tuple(given.values()), [])
        return self

    def inc(self, by: float) -> None:
        self._now.append(by)

    observe = set = inc


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Series]:
    monkeypatch.setattr(Series, "made", {})
    # The payload asks for the module even where the collector brings classes of its own.
    stand_in = SimpleNamespace(Counter=Series, Gauge=Series, Histogram=Series)
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", stand_in)
    return Series.made


def queue(on: bool = True, **collector: Any) -> Any:
    return SimpleNamespace(
        scheduler=SimpleNamespace(
            metrics_reporter=SimpleNamespace(enable_metrics=on),
            metrics_collector=SimpleNamespace(labels=LABELS, **collector),
        ),
        _deferred_releases=[],
    )


def hold(one: Any) -> Any:
    request = SimpleNamespace()
    one._deferred_releases.append(request)
    outcomes.held(one, request)
    return request


def end(one: Any, request: Any, how: Callable[[], None]) -> None:
    one._deferred_releases.remove(request)
    how()


def test_every_end_is_counted_with_its_duration(
    made: dict[str, Series], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 10.0, 10.0, 12.5, 40.0, 11.0])
    monkeypatch.setattr(outcomes.time, "monotonic", lambda: next(clock))
    one = queue()
    a, b, c = hold(one), hold(one), hold(one)
    end(one, a, lambda: outcomes.released(one, a, True))
    end(one, b, lambda: outcomes.released(one, b, False))
    end(one, c, lambda: outcomes.failed(one, c))
    total = made["sglang:decode_deferred_kv_release_total"]
    assert total.names == ["model_name", "tp_rank", "outcome"]
    assert {key[-1]: sum(seen) for key, seen in total.values.items()} == {
        "drained": 1,
        "timeout": 1,
        "error": 1,
    }
    seconds = made["sglang:decode_deferred_kv_release_seconds"]
    assert seconds.values == {("m", 0): [2.5, 30.0, 1.0]}
    assert seconds.more["buckets"][-1] == 60
    held = made["sglang:num_decode_deferred_kv_release_reqs"]
    assert held.values == {("m", 0): [1, 2, 3, 2, 1, 0]}
    assert held.more == {"multiprocess_mode": "mostrecent"}
    assert len(made) == 3


def test_what_is_dropped_is_held_no_longer(made: dict[str, Series]) -> None:
    one = queue()
    hold(one)
    one._deferred_releases.clear()
    outcomes.dropped(one)
    assert made["sglang:num_decode_deferred_kv_release_reqs"].values == {("m", 0): [1, 0]}


def test_nothing_is_made_where_metrics_are_off(made: dict[str, Series]) -> None:
    one = queue(on=False)
    request = hold(one)
    outcomes.released(one, request, True)
    outcomes.dropped(one)
    assert made == {}


def test_the_collector_s_own_classes_are_used(made: dict[str, Series]) -> None:
    class Own(Series):
        pass

    one = queue(_counter_cls=Own, _gauge_cls=Own, _histogram_cls=Own)
    request = hold(one)
    outcomes.released(one, request, True)
    assert {type(series) for series in made.values()} == {Own}


def test_a_metric_that_fails_is_left_out(made: dict[str, Series]) -> None:
    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise ValueError("duplicated")

    one = queue(_counter_cls=refuse)
    request = hold(one)
    outcomes.released(one, request, True)
    outcomes.failed(one, request)
    assert made == {}
    for broken in (SimpleNamespace(), SimpleNamespace(scheduler=None)):
        outcomes.held(broken, request)
        outcomes.failed(broken, request)


def test_an_end_without_a_beginning_lasted_no_time(made: dict[str, Series]) -> None:
    one = queue()
    outcomes.released(one, SimpleNamespace(), True)
    assert made["sglang:decode_deferred_kv_release_seconds"].values == {("m", 0): [0.0]}
