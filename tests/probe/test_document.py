"""The document of a probe: as its schema says, the same bytes each time, and nothing that could be a body."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdguard.cluster.loader import load_cluster, parse_cluster
from pdguard.facts.observed_files import MAX_TEXT, parse_observations
from pdguard.probe.document import as_json, probe_schema
from pdguard.probe.interface import HalfResult, Measure, ProbeResult, Role, Seen, StepResult, Verdict
from pdguard.probe.observations import observations
from tests.probe.results import DIRECT, THROUGH, exposed_019, probed, recorded, step

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = parse_cluster(
    "cluster: prod\n"
    "engines:\n"
    "  - {name: p0, role: prefill, url: 'http://127.0.0.1:1'}\n"
    "  - {name: d0, role: decode, url: 'http://127.0.0.1:2'}\n"
    "routers: [{name: r0, url: 'http://127.0.0.1:3', kind: smg}]\n",
    "test",
)
NOW = 1_796_100_000.0
"""A little after the recorded results, in seconds since 1970."""

PROSE = st.text(max_size=400) | st.sampled_from(["", "line\nbreak", "\u202eback", "\ud800"])
STEPS = st.builds(
    lambda one, route, api, stream: one.__class__(
        one.number, one.kind, route, one.danger, 2, 9, 3.5, 7, None, one.length, api, stream
    ),
    st.builds(step, st.integers(1, 99), st.sampled_from(list(type(step(1).kind)))),
    st.sampled_from([DIRECT, THROUGH]),
    st.sampled_from(list(type(step(1).api))),
    st.booleans(),
)
MEASURES = st.builds(Measure, PROSE, PROSE | st.integers() | st.floats() | st.booleans(), PROSE)
HALVES = st.builds(
    HalfResult,
    st.sampled_from(["p0", "d0", "r0"]),
    st.sampled_from(Role),
    st.sampled_from(Verdict),
    PROSE,
    st.none()
    | st.builds(
        Seen,
        status=st.integers(0, 999),
        outputs=st.integers(0, 99),
        received=st.integers(0),
        events=st.integers(0),
        digest=st.text("0123456789abcdef", max_size=64),
        trouble=PROSE,
    ),
)
RESULTS = st.lists(
    st.builds(
        StepResult,
        STEPS,
        st.sampled_from(Verdict),
        PROSE,
        st.lists(HALVES, max_size=2).map(tuple),
        st.lists(MEASURES, max_size=3).map(tuple),
    ),
    max_size=4,
).map(lambda results: probed(*results))


@settings(max_examples=60, deadline=None)
@given(RESULTS)
def test_any_result_makes_a_document_that_its_schema_and_an_audit_take(result: ProbeResult) -> None:
    text = as_json(result)
    jsonschema.validate(json.loads(text), probe_schema())
    found = parse_observations(text.encode(), "probe.json", CLUSTER, NOW)
    assert tuple(found) == observations(result)


def test_the_schema_is_a_schema_and_closed_everywhere() -> None:
    schema = probe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    objects = re.findall(r'"type": "object"', json.dumps(schema))
    assert len(objects) == json.dumps(schema).count('"additionalProperties": false')


def test_the_same_result_gives_the_same_bytes() -> None:
    assert as_json(exposed_019()) == as_json(exposed_019())
    assert json.loads(as_json(exposed_019()))["exposed"] is True


def test_no_address_no_key_no_mark_and_no_long_digest() -> None:
    text = as_json(exposed_019())
    for secret in ("a key", "10.0.0", "30000", "marks"):
        assert secret not in text
    assert '"digest": "0123456789abcdef"' in text
    assert not re.search(r"[0-9a-f]{17,}", text)


@pytest.mark.parametrize("planted", ["x" * 5000, "a\x1b[31m\x00b\u202e\nc"])
def test_a_sentence_is_bounded_and_printable(planted: str) -> None:
    result = probed(StepResult(step(1), Verdict.INCONCLUSIVE, planted))
    reason = json.loads(as_json(result))["results"][0]["reason"]
    assert len(reason) <= MAX_TEXT
    assert not re.search("[\x00-\x1f\u202e]", reason)


def test_the_example_is_such_a_document_and_goes_with_the_example_cluster() -> None:
    text = (EXAMPLES / "probe.json").read_text("utf-8")
    jsonschema.validate(json.loads(text), probe_schema())
    cluster = load_cluster(EXAMPLES / "full.yaml")
    assert tuple(parse_observations(text.encode(), "probe.json", cluster, NOW)) == observations(recorded())
    told = json.loads(as_json(recorded()))
    assert json.loads(text) | {"pdguard": told["pdguard"]} == told
