"""Files that cannot be read, and what a cluster offers once one is."""

from __future__ import annotations

import datetime
import errno
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from pdguard.cluster import (
    Cluster,
    Engine,
    KubectlNode,
    LocalNode,
    Policy,
    SshNode,
    load_cluster,
    parse_cluster,
)
from pdguard.errors import ClusterFileError, InputError
from tests.cluster.support import BASE, EXAMPLES, HEAD, ROOT, parse


def file_error(path: Path) -> str:
    with pytest.raises(ClusterFileError) as caught:
        load_cluster(path)
    assert caught.value.problems
    return str(caught.value)


def test_missing(tmp_path: Path) -> None:
    path = tmp_path / "no.yaml"
    assert (
        file_error(path)
        == f"{path}: there is no such file (`pdguard demo` shows a cluster, examples/minimal.yaml a file), "
        "expected a cluster file that can be read"
    )


def test_directory(tmp_path: Path) -> None:
    assert file_error(tmp_path) == f"{tmp_path}: cannot be read, expected a file, found a directory"


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        # A mode of 0 would not stop root, who often runs the tests in a container.
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "c.yaml"
    monkeypatch.setattr(Path, "open", refused)
    assert (
        file_error(path)
        == f"{path}: cannot be read (permission denied), expected a cluster file that can be read"
    )


def test_any_other_refusal_of_the_system(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    assert file_error(path).startswith(f"{path}: cannot be read (")
    assert file_error(Path("a\0b")) == "(cluster file): the name of the file is not a name"


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"cluster: c\nname: \xff\n")
    assert (
        file_error(path) == f"{path}:2:7: the file is not UTF-8, expected text in UTF-8, found the byte 0xff"
    )
    path.write_bytes(BASE.encode("utf-16"))
    assert "1:1: the file is not UTF-8" in file_error(path)


def test_huge(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    assert file_error(path) == f"{path}: the file is too large, expected at most 4194304 bytes"
    assert "too large" in file_error(Path("/dev/zero"))
    with pytest.raises(ClusterFileError, match="too large"):
        parse_cluster(" " * (4 * 1024 * 1024 + 1), "x")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_example_loads(path: Path) -> None:
    cluster = load_cluster(path)
    assert cluster.prefills
    assert cluster.decodes
    assert cluster.base_dir == path.parent


def test_there_are_examples() -> None:
    assert {"minimal.yaml", "full.yaml", "kubernetes-nodes.yaml"} <= {path.name for path in EXAMPLES}


def test_full_example_in_detail() -> None:
    cluster = load_cluster(ROOT / "examples" / "full.yaml")
    p0, p1 = cluster.prefills
    r0, r1 = cluster.routers
    assert cluster.engine("p1") is p1
    assert p1.all_nodes == ("gpu-03", "gpu-04")
    assert cluster.engines_on("gpu-04") == (p1,)
    assert cluster.auth is not None
    assert cluster.auth_for(p0) is cluster.auth
    assert cluster.auth_for(r0) is cluster.auth
    own = cluster.auth_for(p1)
    assert own is not None
    assert own.api_key_file == "keys/p1.key"
    assert cluster.routers_for(p0) == (r0, r1)
    assert cluster.routers_for(p1) == (r0,)
    assert r1.built == datetime.date(2026, 5, 4)
    assert isinstance(cluster.nodes["local"], LocalNode)
    assert isinstance(cluster.nodes["gpu-01"], SshNode)
    assert isinstance(cluster.nodes["gpu-04"], KubectlNode)
    assert cluster.policy == Policy(), "the example states the defaults"
    assert p0.model_fields_set


def test_design_document_example_loads() -> None:
    text = """
cluster: prod
engines:
  - {name: p0, role: prefill, url: "http://10.0.0.1:30000", bootstrap_port: 8998, node: gpu-01}
  - {name: d0, role: decode, url: "http://10.0.0.2:30000", node: gpu-02}
routers:
  - {name: r0, url: "http://10.0.0.9:8000", kind: sglang-router}
nodes:
  gpu-01: {transport: ssh, host: gpu-01}
  gpu-02: {transport: local}
auth: {api_key_env: PDGUARD_API_KEY}
prometheus: {url: "http://prometheus:9090"}
"""
    assert parse(text).cluster == "prod"


def test_unknown_engine_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"found P-0\. Did you mean p0\?"):
        parse(BASE).engine("P-0")


def test_models_are_frozen_and_check_what_is_built_in_code() -> None:
    engine = Engine(name="p0", role="prefill", url="http://a/")
    assert engine.url == "http://a"
    with pytest.raises(ValidationError):
        engine.name = "x"
    with pytest.raises(ValidationError, match="is a name that is taken"):
        Cluster(cluster="c", engines=(engine, engine))
    with pytest.raises(ValidationError) as caught:
        Engine(name="p0", role="prefill", url="http://me:hunter2@a")
    assert "hunter2" not in str(caught.value)


def test_a_thousand_engines_load_well_under_a_second() -> None:
    engines = "".join(
        f"  - {{name: e{i}, role: {'decode' if i % 2 else 'prefill'}, url: 'http://h{i}:1', node: n{i}}}\n"
        for i in range(1000)
    )
    text = (
        HEAD
        + engines
        + "nodes:\n"
        + "".join(f"  n{i}: {{transport: ssh, host: n{i}}}\n" for i in range(1000))
    )
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert len(parse(text).engines) == 1000
        took.append(time.perf_counter() - began)
    assert min(took) < 1
