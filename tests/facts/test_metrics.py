"""Counting in /metrics: ranks once, broken lines alone, absence as zero only where that is sure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts import metrics
from pdguard.facts.interface import FactSet, Grade, Subject
from pdguard.facts.metrics import LineFilter, read_metrics
from pdguard.simulator import EngineSpec
from tests.facts.catalogue_check import assert_free_of, assert_in_catalogue
from tests.facts.http_help import simulate

RELEASES = "sglang:decode_deferred_kv_release_total"
FAILED = "sglang:num_transfer_failed_reqs_total"
POOL = "sglang:max_total_num_tokens"


def read(text: str, version: str | None = "0.5.22", size: int = 0) -> Subject:
    subject = Subject("engine", "d0", FactSet())
    if version is not None:
        subject.facts.add("version", version, Grade.CLAIMED, "http", "version")
    lines = LineFilter()
    body = text.encode()
    for start in range(0, len(body), size or len(body) or 1):
        lines.feed(body[start : start + (size or len(body))])
    lines.close()
    read_metrics(subject.facts, lines)
    assert_in_catalogue(subject)
    return subject


def series(name: str, value: object, **labels: str) -> str:
    inner = ",".join(f'{k}="{v}"' for k, v in labels.items())
    return f"{name}{{{inner}}} {value}\n"


def test_tensor_ranks_count_once_and_data_ranks_add_up() -> None:
    text = "".join(
        series(FAILED, value, engine_type="decode", tp_rank=tp, pp_rank=pp, moe_ep_rank="0", dp_rank=dp)
        for dp, value in (("0", 3.0), ("1", 4.0))
        for tp in "01"
        for pp in "01"
    )
    assert read(text).facts.integer("failed_transfers") == 7


def test_a_rank_that_lags_behind_does_not_lower_the_count() -> None:
    text = series(FAILED, 2.0, tp_rank="0") + series(FAILED, 3.0, tp_rank="1")
    assert read(text).facts.integer("failed_transfers") == 3


def test_outcomes() -> None:
    text = series(RELEASES, 5.0, outcome="drained", tp_rank="0") + series(
        RELEASES, 2.0, outcome="timeout", tp_rank="0"
    )
    facts = read(text).facts
    assert [facts.integer(f"holds_{o}") for o in ("drained", "timeout", "error")] == [5, 2, 0]
    fact = facts.get("holds_error")
    assert fact is not None
    assert (fact.grade, fact.evidence[0].value) == (Grade.OBSERVED, "no series yet")


@pytest.mark.parametrize(
    ("version", "extra", "expected"),
    [
        ("0.5.22", "", 0),
        ("0.5.24", "", 0),
        ("0.5.21", "", None),
        ("0.5.22.dev5", "", None),
        (None, "", None),
        (None, "sglang:num_decode_deferred_kv_release_reqs 0.0\n", 0),
    ],
)
def test_absence(version: str | None, extra: str, expected: int | None) -> None:
    facts = read(series(POOL, 4096.0, tp_rank="0") + extra, version).facts
    assert facts.integer("holds_drained") == expected
    assert facts.integer("aborted_requests") == 0


def test_a_page_without_sglang_proves_nothing() -> None:
    facts = read("python_info 1\nsomething_sglang:x 1\n").facts
    for name in metrics.FACTS:
        assert facts.get(name) is None, name


def test_priorities() -> None:
    text = (
        series(FAILED, 9.0, priority="")
        + series(FAILED, 4.0, priority="1")
        + series(FAILED, 5.0, priority="2")
    )
    assert read(text).facts.integer("failed_transfers") == 9


def test_escapes_timestamps_and_odd_numbers() -> None:
    text = (
        f'{POOL}{{model_name="a\\"b\\\\c\\n{{}},",tp_rank="0"}} 2048.0 1700000000000\n'
        f'{POOL}{{model_name="m",tp_rank="1"}} 1.024e3\n'
        f"{POOL} NaN\n{POOL} +Inf\n{POOL} -5\n"
    )
    assert read(text).facts.integer("metric_pool") == 1024
    assert "expected a whole number" in str(read(f"{POOL} NaN\n").facts.why_missing("metric_pool"))


@pytest.mark.parametrize(
    "broken", [f"{FAILED}{{tp_rank=0}} x", f"{FAILED}{{", f'{FAILED}{{a="b" 1', f"{FAILED} sk-x"]
)
def test_a_broken_line_costs_itself(broken: str) -> None:
    text = f"{broken}\n" + series(FAILED, 3.0, tp_rank="0") + series(POOL, 64.0)
    subject = read(text)
    assert (subject.facts.integer("failed_transfers"), subject.facts.integer("metric_pool")) == (3, 64)
    alone = read(broken + "\n" + series(POOL, 64.0))
    assert alone.facts.get("failed_transfers") is None
    assert_free_of(["sk-x"], subject, alone)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100_000])
def test_pieces_of_any_size(size: int) -> None:
    filler = "".join(series("sglang:token_usage", n, tp_rank=str(n)) for n in range(50))
    text = (
        f"# HELP {POOL} x\n# TYPE {POOL} gauge\n"
        + filler
        + series(POOL, 512.0)
        + filler
        + series(FAILED, 1.0)[:-1]
    )
    facts = read(text, size=size).facts
    assert (facts.integer("metric_pool"), facts.integer("failed_transfers")) == (512, 1)


def test_only_needed_lines_are_kept() -> None:
    lines = LineFilter()
    similar = series(f"{POOL}_swa", 1.0) + series("sglang:decode_deferred_kv_release_seconds_sum", 1.0)
    lines.feed((similar + "x" * 100_000).encode())
    lines.feed(b"y" * 100_000)
    lines.feed(b"\n" + series(POOL, 3.0).encode())
    assert lines.lines == [series(POOL, 3.0).strip().encode()]
    for _ in range(300):
        lines.feed(series(POOL, 3.0).encode() * 1000)
    assert len(lines.lines) < 30_000


@given(st.lists(st.sampled_from([RELEASES, FAILED, POOL]), max_size=5), st.text(max_size=60), st.floats())
def test_anything(names: list[str], text: str, value: float) -> None:
    lines = [f'{name}{{outcome="drained",x="{text}"}} {value}' for name in names]
    read("\n".join([*lines, *(name + text for name in names), "sglang:x 1"]))


def test_simulated_tensor_parallel_decode() -> None:
    seed = {'decode_deferred_kv_release_total{outcome="timeout"}': 2.0, "num_transfer_failed_reqs_total": 3.0}
    spec = EngineSpec("d0", role="decode", version="0.5.22", tp=4, seed=seed)
    facts = simulate(spec).engines[0].facts
    assert (facts.integer("holds_timeout"), facts.integer("failed_transfers")) == (2, 3)
    assert (facts.integer("metric_pool"), facts.integer("metric_context")) == (4096, 4096)
