from __future__ import annotations

import base64
import hashlib
import os
import stat
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.errors import TransportError
from pdguard.fingerprint import contents
from pdguard.fingerprint.contents import ContentStore, cache_folder, fetch_contents, holders, unpack
from pdguard.transport.interface import Json


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


class Fleet:
    """Nodes that hold contents, and how often they were asked."""

    def __init__(self, *nodes: dict[str, bytes]) -> None:
        self.nodes = {f"n{i}": node for i, node in enumerate(nodes)}
        self.asked: list[tuple[str, int]] = []

    def held(self) -> dict[str, list[contents.Holder]]:
        return holders((n, 1, {p: sha(d) for p, d in files.items()}) for n, files in self.nodes.items())

    def ask(self, node: str, items: list[Json]) -> Json:
        self.asked.append((node, len(items)))
        rows = []
        for item in items:
            assert isinstance(item, dict)
            rows.append([item["sha256"], packed(self.nodes[node][item["path"]]), ""])
        return {"contents": rows}


def test_each_content_is_asked_for_once_in_the_fleet() -> None:
    same = {"a.py": b"a", "b.py": b"b"}
    fleet = Fleet(same, same, {**same, "a.py": b"patched"}, same)
    store = ContentStore()
    assert fetch_contents(store, fleet.held(), fleet.ask) == {}
    assert sorted(fleet.asked) == [("n0", 2), ("n2", 1)]
    assert store.text(sha(b"patched")) == "patched"
    assert fetch_contents(store, fleet.held(), fleet.ask) == {}
    assert len(fleet.asked) == 2


def test_a_thousand_nodes_cost_three_questions() -> None:
    fleet = Fleet(*({"a.py": str(i % 3).encode()} for i in range(1000)))
    fetch_contents(ContentStore(), fleet.held(), fleet.ask)
    assert len(fleet.asked) == 3


def test_the_next_run_asks_nobody(tmp_path: Path) -> None:
    fleet = Fleet({"a.py": b"a"})
    fetch_contents(ContentStore(tmp_path), fleet.held(), fleet.ask)
    assert fetch_contents(ContentStore(tmp_path), fleet.held(), fleet.ask) == {}
    assert len(fleet.asked) == 1
    (file,) = tmp_path.glob("*/*.z")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(tmp_path.rglob(".new-*"))


@pytest.mark.parametrize("junk", [b"", b"junk", zlib.compress(b"other"), zlib.compress(b"a")[:-3]])
def test_a_spoilt_cache_is_not_believed(tmp_path: Path, junk: bytes) -> None:
    ContentStore(tmp_path).add(sha(b"a"), b"a")
    (file,) = tmp_path.glob("*/*.z")
    file.write_bytes(junk)
    store = ContentStore(tmp_path)
    assert not store.has(sha(b"a"))
    assert store.add(sha(b"a"), b"a")
    assert ContentStore(tmp_path).text(sha(b"a")) == "a"


def test_a_bomb_in_the_cache_is_not_unpacked(tmp_path: Path) -> None:
    data = zlib.compress(b" " * (contents.MAX_SOURCE + 2))
    assert unpack(data) is None
    assert unpack(zlib.compress(b"a")) == b"a"


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ContentStore(tmp_path / "file")
    assert store.add(sha(b"a"), b"a")
    assert store.text(sha(b"a")) == "a"
    assert "not kept" in store.problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert ContentStore(tmp_path).add(sha(b"a"), b"a")


def test_a_hash_is_no_path(tmp_path: Path) -> None:
    assert not ContentStore(tmp_path).has("../../etc/passwd")


def test_what_is_not_what_its_hash_says() -> None:
    assert not ContentStore().add(sha(b"a"), b"b")


def test_encodings() -> None:
    store = ContentStore()
    for data, text in (
        ("# ä\n".encode(), "# ä\n"),
        ("# coding: latin-1\nä".encode("latin-1"), "# coding: latin-1\nä"),
        (b"\xff\xfe", None),
        (b"# coding: no-such\n", None),
    ):
        store.add(sha(data), data)
        assert store.text(sha(data)) == text
        assert store.has(sha(data))


def test_what_one_node_cannot_give_is_asked_of_the_next() -> None:
    fleet = Fleet({"a.py": b"a"}, {"a.py": b"a"}, {"a.py": b"a"}, {"a.py": b"a"})

    def ask(node: str, items: list[Json]) -> Json:
        if node == "n0":
            raise TransportError("gone")
        if node == "n1":
            return {"contents": [[sha(b"a"), packed(b"lie"), ""]]}
        if node == "n2":
            return {"contents": [[sha(b"a"), None, "it has changed since"]]}
        return fleet.ask(node, items)

    store = ContentStore()
    assert fetch_contents(store, fleet.held(), ask) == {}
    assert store.text(sha(b"a")) == "a"


def test_nobody_gives_it() -> None:
    fleet = Fleet({"a.py": b"a", "b.py": b"b", "c.py": b"c"})

    def ask(node: str, items: list[Json]) -> Json:
        return {"contents": [[sha(b"a"), None, "gone"], [sha(b"b"), "!", ""], 3, ["x", None, None]]}

    why = fetch_contents(ContentStore(), fleet.held(), ask)
    assert why[sha(b"a")] == "gone"
    assert why[sha(b"b")] == "what came makes no sense"
    assert why[sha(b"c")] == "the node's answer does not mention it"


def test_a_node_that_ran_out_of_room_is_asked_again() -> None:
    fleet = Fleet({"a.py": b"a", "b.py": b"b"})

    def ask(node: str, items: list[Json]) -> Json:
        answer = fleet.ask(node, items[:1])
        rest = [[item["sha256"], None, "time ran out"] for item in items[1:] if isinstance(item, dict)]
        assert isinstance(answer, dict)
        return {"contents": [*answer["contents"], *rest]}

    assert fetch_contents(ContentStore(), fleet.held(), ask) == {}
    assert len(fleet.asked) == 2


@given(st.binary(max_size=50))
def test_any_packed_bytes(data: bytes) -> None:
    assert unpack(data) is None or isinstance(unpack(data), bytes)


def test_cache_folder() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/pdguard/contents")
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/pdguard/contents")
    assert cache_folder({}) is None
