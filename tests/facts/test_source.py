from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.errors import TransportError
from pdguard.facts._sources import Sources
from pdguard.facts.interface import FactSet, Grade, Subject
from pdguard.facts.process import Found, collect_processes
from pdguard.facts.source import (
    SOURCE_FACTS,
    EngineSource,
    apply_source,
    parse_source,
    source_request,
    tree_reader,
)
from pdguard.fingerprint.contents import ContentStore
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import Fix, Part, Place
from pdguard.transport.interface import Json
from tests.facts.catalogue_check import assert_in_catalogue
from tests.node.package_tree import DECODE, PREFILL, SITE, WATCHED, Machine, mapped

PLACES = tuple(Place(path, "x", None, None) for path in WATCHED)
FIX = Fix("00000", "t", "s", (), "both", (Part("p", PLACES),))


class OnMachine:
    """Runs the node's code on a fake machine, and counts."""

    name = "machine"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.asked: list[Mapping[str, Json]] = []

    def run_script(self, source: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        self.asked.append(request)
        return self.machine.ask(**request)  # type: ignore[no-any-return]


class Broken:
    name = "broken"

    def run_script(self, source: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        raise TransportError("the node is gone")


def read(machine: Machine) -> Found:
    request: dict[str, Json] = {"engines": [{"name": "e", "port": 30000}], "source": source_request(WATCHED)}
    return collect_processes(OnMachine(machine), request, 10).engines["e"]


def facts_of(source: EngineSource | None, why: str = "no node") -> FactSet:
    facts = FactSet()
    apply_source(facts, source, why)
    assert_in_catalogue(Subject("engine", "e", facts))
    assert set(facts.entries) == set(SOURCE_FACTS)
    return facts


def test_facts_of_an_installed_package(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    where = machine.package(SITE)
    machine.dist()
    machine.write(f"{where}/{PREFILL}", "x = 3\n")
    machine.write(f"{where}/srt/rust_extensions/_server.so", "")
    machine.start(maps=mapped(f"{where}/srt/rust_extensions/_server.so"))
    facts = facts_of(read(machine).source)
    assert facts.text("source_unread") == "no"
    assert facts.text("source_root_kind") == "site-packages"
    assert facts.text("source_cover") == "plain"
    assert facts.items("source_mounted") == ()
    assert facts.text("source_version") == "0.5.20"
    assert facts.items("source_differs") == (PREFILL,)
    assert facts.integer("source_tree_differs") == 1
    assert PREFILL in (facts.items("newer_by_ctime") or ())
    assert facts.items("newer_by_mtime") == ()
    assert facts.items("rust_parts") == ("server",)
    assert facts.flag("rust_replaced") is False
    assert facts.get("source_revision") is None
    grades = {name: fact.grade for name, fact in facts.known()}
    assert grades["source_differs"] is grades["source_tree_differs"] is Grade.FINGERPRINTED
    assert grades["source_version"] is Grade.CLAIMED
    assert grades["newer_by_ctime"] is Grade.CONFIGURED
    assert "confirmed" in repr(facts.get("source_root_kind"))
    assert "/opt" not in repr(facts)
    assert str(tmp_path) not in repr(facts)


def test_editable_has_no_record(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.package("/src/python")
    machine.write(f"{SITE}/a.pth", "/src/python\n")
    machine.start()
    facts = facts_of(read(machine).source)
    assert facts.text("source_root_kind") == "editable"
    missing = facts.why_missing("source_differs")
    assert missing is not None
    assert "no distribution" in missing.reason


def test_unknown_is_never_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.package(SITE)
    machine.env = b"\0" * 9
    machine.start(maps=mapped("/usr/lib/libc.so.6"))
    source = read(machine).source
    facts = facts_of(source)
    assert "PYTHONPATH" in (facts.text("source_unread") or "")
    assert facts.get("source_differs") is None
    assert facts.items("rust_parts") == ()
    with pytest.raises(LookupError, match="PYTHONPATH"):
        tree_reader(source, lambda _: "")(PREFILL)


@pytest.mark.parametrize("source", [None, parse_source(None, WATCHED)])
def test_without_a_source(source: EngineSource | None) -> None:
    facts = facts_of(source)
    for name in SOURCE_FACTS[1:]:
        missing = facts.why_missing(name)
        assert missing is not None
        assert missing.reason
    with pytest.raises(LookupError):
        tree_reader(source, lambda _: "")(PREFILL)


def test_reader(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    where = machine.package(SITE)
    (machine.root / where[1:] / DECODE).unlink()
    machine.write(f"{where}/{DECODE}c", "")
    machine.start()
    found = read(machine)
    transport = OnMachine(machine)
    sources = Sources(ContentStore(), Matcher((FIX,)))
    reader = sources.reader(found.source)
    with pytest.raises(LookupError, match="could not be fetched"):
        reader(PREFILL)
    sources.fetch([("n", found), ("n", None), ("n", Found("none"))], lambda _: transport, 10)
    got = reader(PREFILL)
    assert got is not None
    assert got[1] == f"x = 1\n# {PREFILL}\n"
    assert reader("srt/managers/scheduler.py") is None
    with pytest.raises(LookupError, match="compiled form"):
        reader(DECODE)
    with pytest.raises(LookupError, match="not asked for"):
        reader("srt/other.py")
    assert len(transport.asked) == 1
    sources.fetch([("n", found)], lambda _: transport, 10)
    assert len(transport.asked) == 1
    assert sources.missing == {}


def test_node_that_is_gone_in_between(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.package(SITE)
    machine.start()
    sources = Sources(ContentStore(), Matcher(()))
    sources.fetch([("n", read(machine))], lambda _: Broken(), 10)
    assert set(sources.missing.values()) == {"the node is gone"}


GOOD: dict[str, Any] = {
    "status": "found",
    "why": "",
    "kind": "site-packages",
    "via": "site-packages",
    "record": "",
    "files": [["a" * 64, 1, 2, 3], None, "permission denied"],
    "rust": {"read": True, "parts": [], "replaced": False},
    "pyc": {"unchecked": [], "stale": ["/etc/passwd", "../x.py", "srt/a.py"]},
}


def test_partly_read() -> None:
    facts = facts_of(parse_source(GOOD, WATCHED))
    assert facts.text("source_unread") == "1 of 3 files: permission denied"
    assert facts.items("stale_pyc") == ("an odd name", "srt/a.py")


def test_unchecked_compiled_file_hides_the_source() -> None:
    source = parse_source({**GOOD, "pyc": {"unchecked": [PREFILL]}}, WATCHED)
    with pytest.raises(LookupError, match="unchecked"):
        tree_reader(source, lambda _: "text")(PREFILL)
    assert PREFILL not in source.hashes()


def test_long_lists_say_so() -> None:
    newer = {"ctime": ["srt/a.py"], "mtime": [], "ctime_total": 2000, "mtime_total": 0}
    facts = facts_of(parse_source({**GOOD, "newer": newer}, WATCHED))
    assert facts.items("newer_by_ctime") == ("srt/a.py", "+1999 others not shown")


@pytest.mark.parametrize(
    "change",
    [
        {"status": "yes"},
        {"files": [None]},
        {"files": "x"},
        {"kind": "x"},
        {"version": "1 2"},
        {"revision": "zz"},
        {"rust": 1},
        {"newer": {}},
        {"tree": {"whole": 1}},
        {"why": "x" * 201},
    ],
)
def test_nonsense_is_unknown(change: dict[str, Any]) -> None:
    source = parse_source({**GOOD, **change}, WATCHED)
    assert source.status == "unknown"
    assert source.unread() == "the node's answer about its source makes no sense"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(list(GOOD)), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from(list(GOOD)), JSON)
def test_any_answer(answer: Any, key: str, value: Any) -> None:
    for one in (answer, {**GOOD, key: value}, {**GOOD, "files": [value, answer, None]}):
        source = parse_source(one, WATCHED)
        facts_of(source)
        assert all(len(h) == 64 for h in source.hashes().values())
