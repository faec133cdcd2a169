"""Whatever is fed in, a Cluster or a ClusterFileError comes out, and a planted secret never does."""

from __future__ import annotations

import copy
import json
import traceback
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pdguard.cluster import Cluster
from pdguard.errors import ClusterFileError
from tests.cluster.support import BASE, ROOT, parse
from tests.cluster.test_schema import FULL, paths_of

SECRET = "sk-planted-0123456789abcdef0123456789abcdef"

KEYS = st.one_of(
    st.sampled_from(
        [
            "cluster",
            "engines",
            "routers",
            "nodes",
            "auth",
            "name",
            "url",
            "node",
            "transport",
            "tls",
            "policy",
        ]
    ),
    st.text(max_size=8),
    st.integers(),
    st.none(),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=4),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


def attempt(text: str) -> Cluster | ClusterFileError:
    try:
        return parse(text)
    except ClusterFileError as error:
        refused = error
    assert refused.problems
    assert all(problem.what for problem in refused.problems)
    return refused


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    attempt(text)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="ab:-{}[]&*<!|>'\"#%@,? \n\t~1", max_size=60))
def test_any_text_of_yaml_signs(text: str) -> None:
    attempt(text)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_any_yaml_structure(data: object) -> None:
    attempt(yaml.safe_dump(data))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(paths_of(FULL)), TREES)
def test_any_value_anywhere(path: tuple[str | int, ...], value: object) -> None:
    attempt(yaml.safe_dump(planted(path, value)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_cut_or_splice_of_a_good_file(data: st.DataObject) -> None:
    text = (ROOT / "examples" / "full.yaml").read_text()
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    attempt(text[:start] + data.draw(st.text(max_size=5)) + text[end:])


def planted(path: tuple[str | int, ...], value: object) -> Any:
    out = copy.deepcopy(FULL)
    owner = out
    for step in path[:-1]:
        owner = owner[step]
    owner[path[-1]] = value
    return out


SHAPES: dict[str, Any] = {
    "alone": SECRET,
    "quoted as bytes": f"Bearer {SECRET}",
    "in a list": [SECRET],
    "in a mapping": {"x": SECRET},
    "as a key": {SECRET: "x"},
    "as a known key's value": {"api_key": SECRET, "name": SECRET, "url": f"http://me:{SECRET}@h"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_planted_secret_never_comes_out(shape: str) -> None:
    tried = 0
    for path in paths_of(FULL):
        for text in (json.dumps(planted(path, SHAPES[shape])), yaml.safe_dump(planted(path, SHAPES[shape]))):
            error = attempt(text)
            if isinstance(error, ClusterFileError):
                tried += 1
                assert SECRET not in str(error), path
                assert SECRET not in "".join(traceback.format_exception(error)), path
    assert tried > 100


@pytest.mark.parametrize(
    "text",
    [
        f"auth: {{api_key: {SECRET}\n",
        f"auth: {SECRET}: x\n",
        f"auth: !{SECRET} x\n",
        f"auth: !{SECRET}!x y\n",
        f"auth: *{SECRET}\n",
        f"auth: &{SECRET} [*{SECRET}]\n",
        f"%{SECRET}\n---\na\n",
        f"'{SECRET}\n",
        f"\t{SECRET}: 1\n",
        f"{SECRET}: 1\n{SECRET}: 2\n",
        f"{SECRET}: \n",
        f"? [{SECRET}]\n: {SECRET}\n",
        f"<<: {SECRET}\n",
        f"auth: {SECRET}\0\n",
        BASE + f"nodes: {{{SECRET}: {SECRET}}}\n",
    ],
)
def test_a_secret_in_broken_yaml_never_comes_out(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loader in (getattr(yaml, "CSafeLoader", yaml.SafeLoader), yaml.SafeLoader):
        monkeypatch.setattr("pdguard.cluster.tree._LOADER", loader)
        error = attempt(text)
        assert isinstance(error, ClusterFileError)
        assert SECRET not in "".join(traceback.format_exception(error))
