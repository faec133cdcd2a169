from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.errors import TransportError
from pdguard.facts.catalogue import CATALOGUE
from pdguard.facts.environment import ENV_FACTS
from pdguard.facts.interface import FactSet, Grade
from pdguard.facts.process import (
    Found,
    NodeReading,
    apply_engine,
    apply_followers,
    apply_node,
    apply_router,
    collect_processes,
)
from pdguard.facts.versions import parse_version
from pdguard.node.bundle import script
from pdguard.node.names import T_HOLD
from pdguard.transport.interface import Json
from tests.node.tree import ANY, HOLD, LAUNCH, Tree, engine_tree

V = parse_version("0.5.20")
REQUEST: dict[str, Json] = {
    "engines": [{"name": "e", "port": 30000}],
    "routers": [{"name": "r", "port": 8000}],
}


class Says:
    """A transport that answers what it is told to."""

    name = "says"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def run_script(self, source: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        assert source == script()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


class OnTree:
    """A transport that runs the node's code on a fake /proc."""

    name = "tree"

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def run_script(self, source: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        return self.tree.ask(list(request["engines"]))  # type: ignore[no-any-return, arg-type]


def read(tree: Tree) -> FactSet:
    facts = FactSet()
    reading = collect_processes(OnTree(tree), REQUEST, 10)
    apply_engine(facts, reading.engines["e"], V)
    return facts


def test_facts_of_an_engine(tmp_path: Path) -> None:
    argv = [*LAUNCH, "--context-length", "4096", "--api-key", "sk-1", "--disaggregation-mode", "decode"]
    facts = read(engine_tree(tmp_path, argv=argv))
    assert facts.integer("pid") == 20
    assert facts.integer("started") == 1700000020
    assert facts.items("process_flags") == (
        "--port 30000",
        "--context-length 4096",
        "--disaggregation-mode decode",
        "+2 others not shown",
    )
    assert facts.text("config_file") == "none"
    assert facts.integer("context_flag") == 4096
    assert facts.text("start_role") == "decode"
    assert facts.items("titles") == ("sglang::detokenizer", "sglang::scheduler_TP0")
    assert facts.flag("env_read") is True
    assert facts.text("hold_raw") == "on"
    assert facts.flag("hold_setting") is False
    assert facts.text("hold_misread") == "said on, is off"
    for name, fact in facts.known():
        assert name in CATALOGUE["engine"]
        assert fact.grade is Grade.CONFIGURED
        assert fact.evidence[0].source == "process"
    assert "sk-1" not in repr(facts)


@pytest.mark.parametrize("environ", [b"", b"\0" * 100])
def test_nul_environment_is_unknown_and_never_unset(tmp_path: Path, environ: bytes) -> None:
    tree = Tree(tmp_path)
    tree.add(1, 0, ["init"], {})
    tree.add(20, 1, LAUNCH, environ, listens=[(ANY, 30000)])
    facts = read(tree)
    assert facts.flag("env_read") is False
    for name in ENV_FACTS:
        assert facts.get(name) is None
        assert facts.why_missing(name)
    assert facts.integer("pid") == 20


def test_config_unreadable_keeps_the_flags_but_no_facts(tmp_path: Path) -> None:
    facts = read(engine_tree(tmp_path, argv=[*LAUNCH, "--context-length", "1", "--config", "no.yaml"]))
    assert facts.text("config_file") == "unreadable"
    assert facts.get("context_flag") is None


def test_config_is_merged(tmp_path: Path) -> None:
    (tmp_path / "root/work").mkdir(parents=True)
    (tmp_path / "root/work/c.yaml").write_text("context-length: 4096\nport: 1\napi-key: sk-1\n")
    tree = Tree(tmp_path / "proc")
    argv = [*LAUNCH, "--config", "c.yaml"]
    tree.add(20, 1, argv, {}, listens=[(ANY, 30000)], root=tmp_path / "root")
    facts = read(tree)
    assert facts.integer("context_flag") == 4096
    assert facts.text("config_file") == "read"
    assert facts.items("process_flags") == ("--context-length 4096", "--port 30000", "+2 others not shown")


def test_not_found_says_why(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(1, 0, ["init"], {})
    facts = read(tree)
    gap = facts.why_missing("hold_setting")
    assert gap is not None
    assert gap.reason == "no process listens on port 30000"
    apply_engine(fresh := FactSet(), None, V)
    assert fresh.why_missing("env_read")


def test_a_node_that_cannot_be_read() -> None:
    reading = collect_processes(Says(TransportError("no", todo="do")), REQUEST, 5)
    assert reading.problem is not None
    apply_node(facts := FactSet(), reading, "ssh")
    assert facts.flag("reachable") is False
    assert facts.why_missing("engines")


def test_node_facts(tmp_path: Path) -> None:
    reading = collect_processes(OnTree(engine_tree(tmp_path)), REQUEST, 5)
    apply_node(facts := FactSet(), reading, "local")
    assert facts.integer("engines") == 1
    assert facts.items("engines_lost") == ()
    assert set(facts.entries) == set(CATALOGUE["node"])


@pytest.mark.parametrize(
    ("status", "lost"), [("none", ("e",)), ("other", ("e",)), ("unreadable", None), ("ambiguous", None)]
)
def test_only_an_engine_that_is_not_there_is_lost(status: str, lost: tuple[str, ...] | None) -> None:
    apply_node(facts := FactSet(), NodeReading(engines={"e": Found(status)}), "local")
    assert facts.items("engines_lost") == lost
    assert facts.integer("engines") == 0


def engine(**more: Any) -> dict[str, Any]:
    return {"pid": 7, "env": {"state": "read", "values": {}}, **more}


@pytest.mark.parametrize(
    "process",
    [
        {},
        {"pid": "7"},
        {"pid": True},
        {"pid": 7, "started": -1},
        {"pid": 7, "env": {"state": "read", "values": {"A": 1}}},
        {"pid": 7, "titles": "x"},
        {"pid": 7, "argv": {"state": "read", "args": [1]}},
        {"pid": 7, "config": {"how": "sk-secret"}},
        [],
        "x",
        None,
    ],
)
def test_a_lying_node_costs_its_own_facts_only(process: object) -> None:
    answer = {
        "schema": "pdguard.node/1",
        "engines": [
            {"name": "e", "status": "found", "process": process},
            {"name": "f", "status": "found", "process": engine()},
            {"name": "not asked", "status": "found", "process": engine()},
            "nonsense",
        ],
    }
    request: dict[str, Json] = {"engines": [{"name": "e"}, {"name": "f"}]}
    reading = collect_processes(Says(answer), request, 5)
    assert reading.engines["e"].engine is None
    assert reading.engines["e"].why == "the node's answer about it makes no sense"
    assert reading.engines["f"].engine is not None
    assert set(reading.engines) == {"e", "f"}


@pytest.mark.parametrize(
    "answer", [None, [], "x", {}, {"schema": "other"}, {"schema": "pdguard.node/1", "engines": 3}]
)
def test_nonsense_as_a_whole(answer: object) -> None:
    reading = collect_processes(Says(answer), REQUEST, 5)
    assert all(found.engine is None for found in reading.engines.values())
    assert reading.problem is not None or reading.engines["e"].why == "the node's answer does not mention it"


def test_variables_off_the_allow_list_are_dropped() -> None:
    process = engine(env={"state": "read", "values": {"API_KEY": "sk-1", HOLD: "1"}})
    answer = {"schema": "pdguard.node/1", "engines": [{"name": "e", "status": "found", "process": process}]}
    apply_engine(facts := FactSet(), collect_processes(Says(answer), REQUEST, 5).engines["e"], V)
    assert facts.flag("hold_setting") is True
    assert "sk-1" not in repr(facts)


def found(values: dict[str, str], state: str = "read") -> Found:
    answer = {
        "schema": "pdguard.node/1",
        "engines": [
            {"name": "e", "status": "found", "process": engine(env={"state": state, "values": values})}
        ],
    }
    return collect_processes(Says(answer), REQUEST, 5).engines["e"]


def test_followers() -> None:
    leader = found({HOLD: "1"})
    apply_followers(same := FactSet(), leader, {"n2": found({HOLD: "true"}), "n1": found({HOLD: "1"})}, V)
    assert same.items("followers") == ("n1", "n2")
    assert same.flag("followers_alike") is True
    apply_followers(other := FactSet(), leader, {"n1": found({HOLD: "1", T_HOLD: "60"})}, V)
    assert other.flag("followers_alike") is False
    apply_followers(gone := FactSet(), leader, {"n1": found({HOLD: "1"}), "n2": Found("none")}, V)
    assert gone.items("followers") == ("n1",)
    assert gone.why_missing("followers_alike")
    apply_followers(nul := FactSet(), leader, {"n1": found({}, "all-nul")}, V)
    assert nul.why_missing("followers_alike")
    apply_followers(alone := FactSet(), leader, {}, V)
    assert alone.items("followers") == ()


def test_router() -> None:
    process = {"pid": 3, "kind": "smg", "version": "1.13.0", "built": "2026-10-15"}
    answer = {"schema": "pdguard.node/1", "routers": [{"name": "r", "status": "found", "process": process}]}
    apply_router(facts := FactSet(), collect_processes(Says(answer), REQUEST, 5).routers["r"])
    assert facts.text("version") == "1.13.0"
    assert facts.text("built") == "2026-10-15"
    apply_router(gone := FactSet(), NodeReading().routers.get("r"))
    assert gone.why_missing("version")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["read", "found", "e", HOLD]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "status", "process", "pid", "env", "state", "values", "argv", "args", HOLD, "config"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=3), JSON)
def test_any_answer(engines: list[object], whole: object) -> None:
    for answer in ({"schema": "pdguard.node/1", "engines": engines, "routers": whole}, whole):
        reading = collect_processes(Says(answer), REQUEST, 5)
        apply_engine(FactSet(), reading.engines.get("e"), V)
        apply_router(FactSet(), reading.routers.get("r"))
        apply_node(FactSet(), reading, "local")
