"""Counting is exact: against a model that knows every event, through restarts, ranks and lost scrapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.outcomes import series as s
from pdguard.outcomes.series import Counting, Scrapes

PLAIN: s.Labels = (("tp_rank", "0"),)


def scrapes(*pages: dict[s.Key, float], start: int = 1, lost: tuple[int, ...] = ()) -> Scrapes:
    """One page a second, from 1 on."""
    made = Scrapes(start=float(start))
    for number, page in enumerate(pages, 1):
        if number in lost:
            continue
        made.times.append(float(number))
        for (name, labels), value in page.items():
            made.add(float(number), name, labels, value)
    return made


def aborts(*values: float | None) -> list[dict[s.Key, float]]:
    return [{} if value is None else {(s.ABORTS, PLAIN): value} for value in values]


@pytest.mark.parametrize(
    ("values", "rise", "resets"),
    [
        ((5, 5, 5), 0, 0),
        ((5, 7, 9), 4, 0),
        ((None, None, 3), 3, 0),
        ((9, 2, 4), 4, 1),
        ((9, None, 2), 2, 1),
        ((1, None, 3), 3, 1),
        ((5, 0, 5, 1), 6, 2),
        ((4, None, None), 0, 1),
    ],
)
def test_one_series(values: tuple[float | None, ...], rise: float, resets: int) -> None:
    counting = Counting(scrapes(*aborts(*values)))
    assert counting.increase(s.ABORTS) == rise
    assert counting.resets == resets


def test_a_counter_that_grew_past_its_old_value_is_seen_by_its_neighbour() -> None:
    pages = [
        {(s.ABORTS, PLAIN): 1.0, (s.REQUESTS, PLAIN): 100.0},
        {(s.ABORTS, PLAIN): 3.0, (s.REQUESTS, PLAIN): 4.0},
    ]
    counting = Counting(scrapes(*pages))
    assert (counting.increase(s.ABORTS), counting.increase(s.REQUESTS), counting.resets) == (3.0, 4.0, 1)


def test_the_last_scrape_before_the_window_is_where_it_begins() -> None:
    assert Counting(scrapes(*aborts(1, 5, 6, 9), start=2)).increase(s.ABORTS) == 4
    assert Counting(scrapes(*aborts(None, None, 6, 9), start=2)).increase(s.ABORTS) == 9


def test_an_engine_first_scraped_within_the_window_is_not_counted_from_its_first_value() -> None:
    made = scrapes(*aborts(None, None, 50, 52), start=2, lost=(1, 2))
    assert Counting(made).increase(s.ABORTS) == 2
    made = scrapes({}, {}, {(s.REQUESTS, PLAIN): 9.0}, *aborts(7), start=2, lost=(1, 2))
    assert Counting(made).increase(s.ABORTS) == 7


def test_since_the_start() -> None:
    made = scrapes(*aborts(41))
    made.from_zero = True
    assert (Counting(made).increase(s.ABORTS), Counting(made).resets) == (41, 0)


def test_without_the_times_of_scrapes_a_series_falls_for_itself_alone() -> None:
    made = scrapes(*aborts(9, None, 12, 1))
    made.times = []
    counting = Counting(made)
    assert (counting.increase(s.ABORTS), counting.resets) == (4, 1)


def test_a_broken_line_is_no_restart() -> None:
    made = scrapes(*aborts(9, None, 12))
    made.broken.add(s.ABORTS)
    assert (Counting(made).increase(s.ABORTS), Counting(made).resets) == (3, 0)


def rank(**labels: str) -> s.Labels:
    return tuple(sorted({"engine_type": "decode", "outcome": "timeout", **labels}.items()))


def test_ranks_of_a_group_count_once_and_data_ranks_add_up() -> None:
    def page(value: float) -> dict[s.Key, float]:
        return {
            (s.HOLDS, rank(tp_rank=tp, pp_rank=pp, moe_ep_rank=tp, dp_rank=dp)): value * (1 + int(dp))
            for tp in "01"
            for pp in "01"
            for dp in "01"
        }

    counting = Counting(scrapes(page(0), page(2)))
    assert counting.increase(s.HOLDS, outcome="timeout") == 6
    assert counting.increase(s.HOLDS) == 6
    assert counting.increase(s.HOLDS, outcome="drained") is None


def test_a_rank_that_lags_behind_does_not_lower_the_count() -> None:
    pages = [
        {(s.HOLDS, rank(tp_rank="0")): 1.0, (s.HOLDS, rank(tp_rank="1")): 1.0},
        {(s.HOLDS, rank(tp_rank="0")): 2.0, (s.HOLDS, rank(tp_rank="1")): 4.0},
    ]
    assert Counting(scrapes(*pages)).increase(s.HOLDS) == 3


def test_priorities_are_parts_of_the_whole() -> None:
    pages = [{}, {(s.HOLDS, rank(priority=p)): 5.0 for p in ("", "1", "2")}]
    assert Counting(scrapes(*pages)).increase(s.HOLDS) == 5


@pytest.mark.parametrize("kind", ["decode", "dynamic", "unified"])
def test_any_engine_type(kind: str) -> None:
    pages = [{}, {(s.HOLDS, rank(engine_type=kind)): 5.0}]
    assert Counting(scrapes(*pages)).increase(s.HOLDS, outcome="timeout") == 5


def buckets(values: dict[str, float], total: float, **labels: str) -> dict[s.Key, float]:
    own = tuple(sorted(labels.items()))
    page = {
        (f"{s.TRANSFER_MS}_bucket", tuple(sorted({**labels, "le": le}.items()))): value
        for le, value in values.items()
    }
    count = values["+Inf"]
    return {**page, (f"{s.TRANSFER_MS}_sum", own): total, (f"{s.TRANSFER_MS}_count", own): count}


def test_a_histogram_is_that_of_the_slowest_rank_and_adds_over_data_ranks() -> None:
    before = buckets({"1.0": 1, "5000.0": 2, "+Inf": 2}, 30.0, tp_rank="0", dp_rank="0")
    after = {
        **buckets({"1.0": 3, "5000.0": 5, "+Inf": 6}, 9030.0, tp_rank="0", dp_rank="0"),
        **buckets({"1.0": 4, "5000.0": 4, "+Inf": 4}, 4.0, tp_rank="1", dp_rank="0"),
        **buckets({"1.0": 0, "5000.0": 1, "+Inf": 1}, 70.0, tp_rank="0", dp_rank="1"),
    }
    found = Counting(scrapes(before, after)).histogram(s.TRANSFER_MS, 0.001)
    assert found is not None
    assert [bound for bound, _ in found.buckets] == [0.001, 5.0, float("inf")]
    assert [count for _, count in found.buckets] == [2, 4, 5]
    assert [found.count, found.total] == pytest.approx([5, 9.07])


def test_a_histogram_through_a_restart() -> None:
    pages = [
        buckets({"1.0": 4, "+Inf": 9}, 90.0),
        buckets({"1.0": 5, "+Inf": 12}, 120.0),
        buckets({"1.0": 1, "+Inf": 2}, 7.0),
    ]
    found = Counting(scrapes(*pages)).histogram(s.TRANSFER_MS)
    assert found is not None
    assert (found.buckets, found.count, found.total) == (((1.0, 2.0), (float("inf"), 5.0)), 5.0, 37.0)


def test_data_ranks_with_other_buckets_give_no_histogram() -> None:
    page = {
        **buckets({"1.0": 1, "+Inf": 1}, 1, dp_rank="0"),
        **buckets({"2.0": 1, "+Inf": 1}, 1, dp_rank="1"),
    }
    assert Counting(scrapes({}, page)).histogram(s.TRANSFER_MS) is None


def test_gauges() -> None:
    made = Scrapes()
    for tp, dp, value in (("0", "0", 10.0), ("1", "0", 12.0), ("0", "1", 7.0)):
        made.gauges[s.POOL, (("dp_rank", dp), ("tp_rank", tp))] = value
        made.gauges[s.PAGE_SIZE, (("dp_rank", dp), ("tp_rank", tp))] = 64.0
    made.gauges[s.POOL, (("dp_rank", "0"), ("priority", "1"), ("tp_rank", "0"))] = 99.0
    counting = Counting(made)
    assert counting.gauge(s.POOL) == 19
    assert counting.gauge(s.PAGE_SIZE, add=False) == 64
    assert counting.gauge(s.HELD_NOW) is None


NAMES = (s.ABORTS, s.REQUESTS, s.FAILED_TRANSFERS)


@dataclass
class Model:
    """An engine that knows every event; what happened within the window, and after its last scrape's end."""

    counters: dict[str, float] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)

    def event(self, name: str, amount: int) -> None:
        self.counters[name] = self.counters.get(name, 0.0) + amount
        self.pending[name] = self.pending.get(name, 0.0) + amount

    def restart(self) -> None:
        """What no scrape has seen is lost, whoever counts."""
        self.counters.clear()
        self.pending.clear()

    def scrape(self) -> dict[s.Key, float]:
        for name, amount in self.pending.items():
            self.counted[name] = self.counted.get(name, 0.0) + amount
        self.pending.clear()
        return {(name, (("tp_rank", tp),)): value for name, value in self.counters.items() for tp in "01"}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.sampled_from(NAMES), st.integers(1, 50)),
        st.tuples(st.just("scrape"), st.just(""), st.just(0)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
        st.tuples(st.just("lost"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 1000))
def test_every_event_that_a_scrape_could_see_is_counted_once(
    story: list[tuple[str, str, int]], before: int
) -> None:
    """A restart shows in the busiest counter, which falls; the others are counted by it."""
    model = Model()
    heartbeat = 10_000.0
    model.event(s.ABORTS, before)
    made = Scrapes(start=1.0)
    at = 1.0

    def scrape() -> None:
        made.times.append(at)
        for (name, labels), value in {**model.scrape(), (s.PROMPT_TOKENS, PLAIN): heartbeat}.items():
            made.add(at, name, labels, value)

    scrape()
    model.counted.clear()
    restarts, restarted = 0, False
    for what, name, amount in [*story, ("scrape", "", 0)]:
        if what == "event":
            model.event(name, amount)
        elif what == "restart":
            model.restart()
            heartbeat, restarted = heartbeat / 2, True
        else:
            at += 1.0
            if what == "scrape":
                restarts += restarted
                restarted = False
                scrape()
    counting = Counting(made)
    for name in NAMES:
        assert (counting.increase(name) or 0.0) == model.counted.get(name, 0.0)
    assert counting.resets == restarts


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50))
def test_one_counter_alone_against_the_rule_of_falls(values: list[int]) -> None:
    expected = sum(after - before if after >= before else after for before, after in pairwise(values))
    assert Counting(scrapes(*aborts(*values))).increase(s.ABORTS) == expected
