"""What other runs observed, merged into facts: in order of strength, of age, and for whom it speaks."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdguard.cluster.loader import parse_cluster
from pdguard.errors import InputError
from pdguard.facts.derived import derive_engine
from pdguard.facts.interface import Grade, PairSubject, Subject, Value
from pdguard.facts.observed import KINDS, Observation, Observed, as_entry, mark_of
from pdguard.facts.observed_files import MAX_BYTES, load_observations, parse_observations
from pdguard.facts.pairing import MAX_PAIRS, build_pairs

AT = "2026-11-30T12:00:00Z"
NOW = datetime.datetime(2026, 11, 30, 13, 0, tzinfo=datetime.UTC).timestamp()
BEGAN = NOW - 3600
CLUSTER = parse_cluster(
    "cluster: prod\n"
    "engines:\n"
    "  - {name: p0, role: prefill, url: 'http://127.0.0.1:1'}\n"
    "  - {name: d0, role: decode, url: 'http://127.0.0.1:2'}\n"
    "routers: [{name: r0, url: 'http://127.0.0.1:3', kind: smg}]\n",
    "test",
)


def seen(
    fact: str, value: Value, subject: str = "pair", name: str = "p0→d0", at: str = AT, source: str = "probe"
) -> Observation:
    return Observation(subject, name, fact, value, source, "step 1", at)


def engine(name: str, started: int | None = None, **facts: Value) -> Subject:
    subject = Subject("engine", name)
    known: dict[str, Value] = {"version": "0.5.20", **facts}
    for key, value in known.items():
        subject.facts.add(key, value, Grade.CLAIMED, "test", key)
    if started is not None:
        subject.facts.add("started", started, Grade.CONFIGURED, "process", "started")
    return subject


def merged(
    observations: Sequence[Observation], now: float = NOW, **started: int | None
) -> tuple[PairSubject, Observed]:
    p, d = engine("p0", started.get("p0")), engine("d0", started.get("d0"))
    observed = Observed(observations, now)
    (pair,) = build_pairs([p], [d], [])
    observed.pairs([pair], [p, d])
    return pair, observed


def test_a_pair_takes_what_was_seen_with_grade_and_evidence() -> None:
    pair, observed = merged([seen("probes", ("over-pool",)), seen("probe_exposed", True)])
    fact = pair.facts.get("probe_exposed")
    assert fact is not None
    assert (fact.value, fact.grade) == (True, Grade.OBSERVED)
    assert [(e.source, e.ref) for e in fact.evidence] == [("probe", f"step 1, {AT}")]
    assert pair.facts.value("probes") == ("over-pool",)
    assert observed.notes()[0] == f"probe of {AT}: 2 observations merged"


def test_without_a_document_nothing_was_probed_and_nothing_watched() -> None:
    pair, observed = merged([])
    assert pair.facts.value("probes") == ()
    whole = Subject("cluster", "prod")
    observed.cluster(whole)
    watched = whole.facts.get("watched")
    assert watched is not None
    assert (watched.value, watched.evidence) == (False, ())


def test_an_engine_s_own_behaviour_reaches_what_is_derived_and_beats_its_version() -> None:
    one = engine("p0")
    Observed([seen("reject_fate", "walks on", "engine", "p0")], NOW).engine(one)
    derive_engine(one.facts)
    fact = one.facts.get("reject_fate")
    assert fact is not None
    assert (fact.value, fact.grade) == ("walks on", Grade.OBSERVED)


@pytest.mark.parametrize(
    ("p0", "d0", "kept"),
    [
        (None, None, True),
        (int(BEGAN) - 60, int(BEGAN) - 60, True),
        (int(BEGAN) + 60, None, False),
        (int(BEGAN) - 60, int(BEGAN) + 60, False),
    ],
)
def test_what_was_seen_before_an_engine_s_start_is_no_evidence(
    p0: int | None, d0: int | None, kept: bool
) -> None:
    pair, observed = merged([seen("probe_exposed", True), seen("probes", ("over-pool",))], p0=p0, d0=d0)
    assert (pair.facts.get("probe_exposed") is not None) is kept
    assert bool(pair.facts.value("probes")) is kept
    if not kept:
        (note,) = observed.notes()
        late = "p0" if d0 is None else "d0"
        assert note == f"probe of {AT}: 2 observations are left out, for {late} started later"


def test_the_same_for_engines_and_routers() -> None:
    one = engine("p0", int(BEGAN) + 1)
    router = Subject("router", "r0")
    said = [
        seen("reject_fate", "walks on", "engine", "p0"),
        seen("pairs_refusals", "no", "router", "r0"),
    ]
    observed = Observed(said, NOW)
    observed.engine(one)
    observed.router(router, [one])
    assert one.facts.get("reject_fate") is None
    assert router.facts.get("pairs_refusals") is None
    assert router.facts.value("probes") == ()
    assert len(observed.notes()) == 1


def test_age_is_told_where_the_start_is_not_known() -> None:
    said = [seen("probe_exposed", True)]
    one_merged = f"probe of {AT}: 1 observation merged"
    assert merged(said, BEGAN + 90_000, p0=1, d0=1)[1].notes() == (one_merged,)
    for now, age in ((BEGAN + 7_200, "2.0 hours"), (BEGAN + 3 * 86_400, "3.0 days")):
        first, note = merged(said, now, p0=1)[1].notes()
        assert first == one_merged
        assert note == f"probe of {AT} is {age} old; whether d0 started later is not known"


def test_what_went_well_is_believed_for_a_day_where_the_start_is_not_known() -> None:
    said = [seen("probe_exposed", False), seen("probes", ("over-pool",))]
    for hours, p0, kept in ((23, None, True), (25, None, False), (25, 1, True)):
        pair, observed = merged(said, BEGAN + hours * 3600, p0=p0, d0=1)
        assert (pair.facts.get("probe_exposed") is not None) is kept
        assert pair.facts.value("probes") == ("over-pool",)  # so that its checks are unknown, not skipped
        left = "1 that went well is left out as older than a day, for the start of p0 is not known"
        assert (f"probe of {AT}: {left}" in observed.notes()) is not kept
    failed, _ = merged([seen("probe_exposed", True)], BEGAN + 25 * 3600)
    assert failed.facts.value("probe_exposed") is True


@pytest.mark.parametrize("fact", ["version", "context_length", "admission_limit", "pool"])
@pytest.mark.parametrize("value", [True, False])
def test_an_engine_that_is_another_now_is_not_the_one_that_was_observed(fact: str, value: bool) -> None:
    then = engine("p0", 1, admission_limit=2042, pool=2048, context_length=4096)
    now = engine("p0", 1, admission_limit=2042, pool=2048, context_length=4096)
    changed: Value = "0.5.19" if fact == "version" else 1018
    now.facts.entries.pop(fact)
    now.facts.add(fact, changed, Grade.CONFIGURED, "test", fact)
    d0 = engine("d0", 1)
    said = [replace(seen("probe_exposed", value), engines=(mark_of(then), mark_of(d0)))]
    for prefill, kept in ((then, True), (now, False)):
        observed = Observed(said, NOW)
        (pair,) = build_pairs([prefill], [d0], [])
        observed.pairs([pair], [prefill, d0])
        assert (pair.facts.get("probe_exposed") is not None) is kept
        assert any("runs no more" in note for note in observed.notes()) is not kept


def test_a_walk_that_was_seen_is_not_undone_by_a_later_refusal() -> None:
    """As long as the same process runs; two documents may disagree."""
    one = engine("p0", int(BEGAN) - 60)
    fates = ("walks on", AT), ("is retired at the door", LATER)
    Observed([seen("reject_fate", f, "engine", "p0", at) for f, at in fates], NOW).engine(one)
    assert one.facts.text("reject_fate") == "walks on"


LATER = "2026-11-30T12:30:00Z"


def test_a_failure_that_was_seen_stays_and_of_others_the_newest_counts() -> None:
    exposed = [seen("probe_exposed", True), seen("probe_exposed", False, at=LATER)]
    assert merged(exposed)[0].facts.value("probe_exposed") is True
    router = Subject("router", "r0")
    said = [
        seen("pairs_refusals", "no", "router", "r0"),
        seen("pairs_refusals", "yes", "router", "r0", LATER),
    ]
    Observed(said, NOW).router(router, [])
    assert router.facts.value("pairs_refusals") == "yes"


def fleet(observations: Sequence[Observation]) -> list[PairSubject]:
    half = int(MAX_PAIRS**0.5) + 1
    engines = [[engine(f"{role}{n}") for n in range(half)] for role in "pd"]
    pairs = build_pairs(engines[0], engines[1], [])
    Observed(observations, NOW).pairs(pairs, [*engines[0], *engines[1]])
    return pairs


def test_a_failure_on_one_pair_speaks_for_all_that_are_alike_and_a_success_does_not() -> None:
    said = [
        seen("probes", ("over-pool",), name="p3→d5"),
        seen("probe_exposed", True, name="p3→d5"),
        seen("probe_held", "none", name="p3→d5"),
    ]
    (pair,) = fleet(said)
    assert pair.alike == 17 * 17
    exposed = pair.facts.get("probe_exposed")
    assert exposed is not None
    assert exposed.evidence[0].ref == f"p3→d5: step 1, {AT}"
    assert pair.facts.get("probe_held") is None
    why = pair.facts.why_missing("probe_held")
    assert why is not None
    assert why.reason == "seen on p3→d5 only, one of 289 pairs that are alike"


def test_a_window_tells_who_is_watched_and_keeps_pairs_together() -> None:
    said = [
        seen(f"window_holds_{o}", n, "engine", "d0", source="metrics")
        for o, n in (("drained", 90), ("timeout", 3), ("error", 0))
    ]
    observed = Observed(said, NOW)
    engines = [engine(f"{role}{n}") for role in "pd" for n in range(17)]
    for one in engines:
        observed.engine(one)
    watched = {e.name: e.facts.flag("watched") for e in engines}
    assert watched["d0"] is True
    assert watched["d1"] is False
    assert len(build_pairs(engines[:17], engines[17:], [])) == 1


def document(**changes: Any) -> dict[str, Any]:
    entry = as_entry(seen("probe_exposed", True)) | changes.pop("entry", {})
    head = {"schema": "pdguard.probe/1", "cluster": "prod", "engines": []}
    return {**head, "observations": [entry]} | changes


def parse(content: object) -> list[Observation]:
    return parse_observations(json.dumps(content).encode(), "probe.json", CLUSTER, NOW)


def test_a_document_is_read_as_it_was_written() -> None:
    every = [
        seen("probe_exposed", True),
        seen("probes", KINDS, "router", "r0"),
        seen("reject_fate", "walks on", "engine", "d0", at="2026-11-30T12:00:00.5Z"),
    ]
    assert parse(document(observations=[as_entry(o) for o in every])) == every
    held = seen("held_share", 1, "engine", "d0", source="metrics")
    (read,) = parse(document(schema="pdguard.metrics/1", observations=[as_entry(held)]))
    assert read == replace(held, value=1.0)
    assert type(read.value) is float


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], ("not a result", "a list")),
        (document(schema="pdguard.report/1"), ("not a result", "pdguard.report/1", "pdguard.metrics/1")),
        (document(schema=3), ("not a result",)),
        (document(cluster="test"), ("another cluster", "`test`", "prod")),
        (document(observations=None), ("observations", "nothing")),
        (document(observations=[3]), ("observation 1", "a number")),
        (document(observations=[{}] * 50_001), ("at most 50,000",)),
        (document(entry={"more": 1}), ("observation 1", "`more`")),
        (document(entry={"fact": "version"}), ("cannot observe pair.version", "probe_exposed")),
        (document(entry={"subject": "node"}), ("cannot observe node.", "engine, pair, router")),
        (document(entry={"subject": "cluster"}), ("cannot observe cluster.",)),
        (document(entry={"name": "p0"}), ("no pair `p0`",)),
        (document(entry={"name": "p0→d9"}), ("no pair `p0→d9`",)),
        (document(entry={"subject": "router", "name": "lb"}), ("no router `lb`", "r0")),
        (document(entry={"value": "yes"}), ("pair.probe_exposed", "true or false", "`yes`")),
        (document(entry={"value": 1}), ("pair.probe_exposed", "true or false")),
        (document(entry={"value": None}), ("true or false", "nothing")),
        (document(entry={"fact": "abort_told", "value": "none of them"}), ("one of both, decode only",)),
        (document(entry={"fact": "probes", "value": ["fuzzing"]}), ("a list of over-pool",)),
        (document(entry={"fact": "probes", "value": ["abort"] * 99}), ("a list of over-pool",)),
        (document(entry={"source": "metrics"}), ("source", "probe")),
        (document(entry={"at": "yesterday"}), ("at", "a UTC time", "`yesterday`")),
        (document(entry={"at": "2026-11-30T12:00:00"}), ("a UTC time",)),
        (document(entry={"at": "2026-13-30T12:00:00Z"}), ("a UTC time",)),
        (document(entry={"at": "2027-01-01T12:00:00Z"}), ("a time in the past", "clocks")),
        (document(entry={"ref": "x" * 301}), ("ref", "300")),
        (document(entry={"ref": "a\x1b[2J"}), ("ref", "printable", "`a?[2J`")),
        (document(schema="pdguard.metrics/1"), ("source", "metrics")),
    ],
)
def test_a_wrong_document_is_refused_in_words(content: object, told: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        parse(content)
    text = str(caught.value)
    assert all(word in text for word in ("probe.json", *told)), text
    assert len(text) < 400
    assert text.isprintable()


def test_numbers_of_a_window_are_bounded() -> None:
    for fact, value in (
        *(("window_holds_drained", v) for v in (-1, 1.5, True, 10**30, "3")),
        *(("held_share", v) for v in (-0.1, True, 10**400, "0.1")),
    ):
        entry = {**as_entry(seen(fact, 0, "engine", "d0", source="metrics")), "value": value}
        with pytest.raises(InputError):
            parse(document(schema="pdguard.metrics/1", observations=[entry]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 200_000,
        b'{"schema": NaN}',
        b"9" * 10_000,
        b"\x00" * 10,
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"probe\.json is not JSON"):
        parse_observations(data, "probe.json", CLUSTER, NOW)


def test_files_are_bounded(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as stream:
        stream.truncate(100 * 1024 * 1024)
    with pytest.raises(InputError, match="at most 16 MiB"):
        load_observations([large], CLUSTER, NOW)
    for missing in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            load_observations([missing], CLUSTER, NOW)
    good = tmp_path / "good.json"
    good.write_bytes(json.dumps(document()).encode())
    assert len(load_observations([good, good], CLUSTER, NOW)) == 2
    assert large.stat().st_size > MAX_BYTES


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4
)
ENTRY = st.fixed_dictionaries(
    {
        "subject": st.sampled_from(["pair", "engine", "router", "node"]) | JSON,
        "name": st.sampled_from(["p0→d0", "p0", "r0"]) | JSON,
        "fact": st.sampled_from(["probes", "probe_held", "reject_fate", "probe_exposed"]) | JSON,
        "value": st.sampled_from(["none", "walks on", ["abort"], True]) | JSON,
        "source": st.just("probe") | JSON,
        "ref": st.just("step 1") | JSON,
        "at": st.just(AT) | JSON,
    }
)


@settings(max_examples=200, deadline=None)
@given(ENTRY)
def test_any_entry_is_an_observation_or_an_input_error(entry: dict[str, Any]) -> None:
    text = json.dumps(document(observations=[entry]))
    with suppress(InputError):
        assert len(parse_observations(text.encode(), "probe.json", CLUSTER, NOW)) == 1
