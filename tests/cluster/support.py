"""Small builders shared by the tests of the cluster file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdguard.cluster import Cluster, parse_cluster
from pdguard.errors import ClusterFileError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

HEAD = "cluster: c\nengines:\n"
P0 = "  - {name: p0, role: prefill, url: 'http://a:1'}\n"
BASE = HEAD + P0
"""Three lines that load; what a test adds begins on line 4."""


def parse(text: str) -> Cluster:
    return parse_cluster(text, "c.yaml")


def parse_data(data: object) -> Cluster:
    return parse(json.dumps(data))


def errors_of(text: str) -> list[str]:
    """The lines of the error that `text` gives, without the file's name."""
    with pytest.raises(ClusterFileError) as caught:
        parse(text)
    assert caught.value.exit_code == 2
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None, "a chained error would print what was refused"
    return [line.removeprefix("c.yaml:") for line in str(caught.value).splitlines()]
