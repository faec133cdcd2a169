"""The schema for editors: it accepts what the loader accepts, and refuses the structural faults."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pdguard.cluster import SCHEMA_ID, cluster_schema
from pdguard.errors import ClusterFileError
from tests.cluster.support import EXAMPLES, ROOT, parse_data

SCHEMA = cluster_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def plain(path: Path) -> Any:
    """An example as JSON data: days stay text, as the loader and editors read them."""
    data: Any = yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # noqa: S506 - BaseLoader makes only text
    return numbers(data)


def numbers(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: numbers(value) for key, value in data.items()}
    if isinstance(data, list):
        return [numbers(value) for value in data]
    if data in ("true", "false"):
        return data == "true"
    if data.replace(".", "", 1).isdigit() and data != "0.3.2":
        return float(data) if "." in data else int(data)
    return data


FULL = plain(ROOT / "examples" / "full.yaml")


def test_is_a_schema_of_ours() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"] == SCHEMA_ID == "pdguard.cluster/1"
    assert cluster_schema() == SCHEMA
    assert cluster_schema() is not SCHEMA


def test_helps_an_editor() -> None:
    assert "null" not in str(SCHEMA)
    for name, model in {"(top)": SCHEMA, **SCHEMA["$defs"]}.items():
        assert model["description"], name
        assert model["additionalProperties"] is False, name
        for field, rule in model["properties"].items():
            assert "title" in rule or "$ref" in rule, (name, field)
    assert SCHEMA["$defs"]["Engine"]["properties"]["role"]["enum"] == ["prefill", "decode"]
    assert SCHEMA["$defs"]["Engine"]["properties"]["bootstrap_port"]["description"]
    assert SCHEMA["properties"]["auth"]["description"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_are_valid(path: Path) -> None:
    VALIDATOR.validate(plain(path))
    parse_data(plain(path))


@pytest.mark.parametrize("host", ["prefill-0.svc", "10.0.0.3", "fd00::3"])
def test_a_bootstrap_host_of_its_own(host: str) -> None:
    data = changed(("engines", 0, "bootstrap_host"), host)
    VALIDATOR.validate(data)
    assert parse_data(data).engines[0].bootstrap_host == host


@pytest.mark.parametrize("instance", ["10.0.0.3:30000", "decode/0 (rack 3)"])
def test_an_instance_label_of_its_own(instance: str) -> None:
    data = changed(("engines", 2, "metrics_instance"), instance)
    VALIDATOR.validate(data)
    assert parse_data(data).engines[2].metrics_instance == instance


DROP = object()
STRUCTURAL: list[tuple[tuple[str | int, ...], Any]] = [
    (("cluster",), DROP),
    (("engines",), DROP),
    (("engines",), []),
    (("engines",), {}),
    (("engin",), []),
    (("cluster",), "a b"),
    (("cluster",), 3),
    (("cluster",), None),
    (("routers",), None),
    (("auth",), None),
    (("engines", 0, "name"), DROP),
    (("engines", 0, "role"), "both"),
    (("engines", 0, "url"), "ftp://a"),
    (("engines", 0, "url"), "http://u:p@a"),
    (("engines", 0, "url"), "http://a?x=1"),
    (("engines", 0, "bootstrap_port"), "8998"),
    (("engines", 0, "bootstrap_port"), 0),
    (("engines", 0, "bootstrap_port"), True),
    (("engines", 2, "bootstrap_port"), 8998),
    (("engines", 0, "bootstrap_host"), "-x"),
    (("engines", 0, "bootstrap_host"), 3),
    (("engines", 2, "bootstrap_host"), "10.0.0.3"),
    (("engines", 0, "metrics_instance"), "a\nb"),
    (("engines", 0, "metrics_instance"), 30000),
    (("engines", 0, "node"), None),
    (("engines", 0, "followers"), "gpu-04"),
    (("engines", 0, "api_key"), "x"),
    (("engines", 1, "tls", "client_key_file"), DROP),
    (("engines", 1, "tls", "insecure"), "yes"),
    (("routers", 0, "kind"), "nginx"),
    (("routers", 1, "engines"), []),
    (("routers", 1, "built"), "4 May"),
    (("routers", 1, "tries"), 0),
    (("routers", 1, "tries"), "5"),
    (("nodes", "gpu-01", "transport"), "telnet"),
    (("nodes", "gpu-01", "transport"), DROP),
    (("nodes", "gpu-01", "host"), "-oProxyCommand=x"),
    (("nodes", "local", "host"), "x"),
    (("nodes", "a b"), {"transport": "local"}),
    (("auth", "api_key_env"), DROP),
    (("auth", "api_key_file"), "x"),
    (("auth", "api_key_env"), "sk-abc"),
    (("prometheus", "headers_env", "X"), "sk-abc"),
    (("prometheus", "selector", "a-b"), "x"),
    (("waivers", 0, "check"), "PDG1"),
    (("waivers", 0, "reason"), " "),
    (("waivers", 0, "expires"), DROP),
    (("policy", "concurrency"), 1025),
    (("policy", "timeout_ratio"), 0),
    (("policy", "min_holds"), 1.5),
]


def changed(path: tuple[str | int, ...], value: Any) -> Any:
    data = copy.deepcopy(FULL)
    owner = data
    for step in path[:-1]:
        owner = owner[step]
    if value is DROP:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return data


@pytest.mark.parametrize(("path", "value"), STRUCTURAL, ids=lambda v: "no value" if v is DROP else str(v))
def test_structural_faults_are_refused_by_both(path: tuple[str | int, ...], value: Any) -> None:
    data = changed(path, value)
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(ClusterFileError):
        parse_data(data)


def paths_of(data: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for step, value in steps for path in ((*at, step), *paths_of(value, (*at, step)))]


VALUES = st.one_of(
    st.just(DROP),
    st.none(),
    st.booleans(),
    st.integers(-10, 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        ["p0", "gpu-01", "http://x", "https://x:1/y/", "prefill", "local", "A", "1.0", "2026-01-01", "*"]
    ),
    st.lists(st.sampled_from(["p0", "gpu-01"]), max_size=2),
    st.dictionaries(
        st.sampled_from(["api_key_env", "transport", "X"]), st.sampled_from(["A", "local"]), max_size=2
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(paths_of(FULL)), VALUES)
def test_what_the_loader_accepts_the_schema_accepts(path: tuple[str | int, ...], value: Any) -> None:
    data = changed(path, value)
    try:
        parse_data(data)
    except ClusterFileError:
        return
    VALIDATOR.validate(data)
