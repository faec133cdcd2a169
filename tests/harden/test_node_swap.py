"""Apply, upgrade, verify and roll back on a small package, and what each leaves behind."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import sys
import time
from pathlib import Path

import pytest

from pdguard.harden.node import steps
from tests.harden.node_tree import OLD, SET, Package, after_first, change, first, second, sha


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk's own speed is not what is tested
    return Package(tmp_path)


def test_there_and_back(package: Package) -> None:
    before, sources = package.snapshot(), package.sources()
    answer = package.apply()
    assert answer["status"] == "applied", answer
    assert answer["left"] == []
    assert answer["state"]["status"] == "hardened"
    assert answer["done"]["removed"] == ["srt/old.py"]
    assert answer["done"]["created"] == ["srt/payload/__init__.py", "srt/payload/deep/door.py"]
    assert package.sources() == after_first(sources)
    assert package.ask("rollback")["status"] == "rolled-back"
    assert package.snapshot() == before
    assert package.ask("rollback")["status"] == "unchanged"
    assert package.snapshot() == before


def test_what_a_new_file_looks_like(package: Package) -> None:
    package.apply()
    found = package.snapshot()
    mode, _, _, mtime, xattrs, link, data = found["sglang/srt/plain.py"]
    assert (mode, link, data) == ("0o100640", None, b"x = 2\n")
    assert mtime > OLD
    if "user.note" in xattrs or "user.note" in os.listxattr(package.root / "srt/plain.py"):
        assert xattrs["user.note"] == b"kept\0"
    assert found["sglang/srt/linked.py"][5] is None
    assert not list(package.root.rglob(".pdguard-*"))


def test_xattrs_are_kept(package: Package) -> None:
    file = package.root / "srt/plain.py"
    if "user.note" not in os.listxattr(file):
        pytest.skip("this file system has no user attributes")
    package.apply()
    assert os.getxattr(file, "user.note") == b"kept\0"


def test_other_environments_keep_their_files(package: Package) -> None:
    before = {
        p.name: (p.read_bytes(), p.stat().st_ino, p.stat().st_mtime_ns) for p in package.cache.iterdir()
    }
    package.apply()
    package.ask("rollback")
    after = {p.name: (p.read_bytes(), p.stat().st_ino, p.stat().st_mtime_ns) for p in package.cache.iterdir()}
    assert after == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owner_is_kept(package: Package) -> None:
    for name in ("plain.py", "linked.py", "__pycache__/plain.cpython-311.pyc"):
        os.chown(package.root / "srt" / name, 4321, 1234, follow_symlinks=False)
    os.chown(package.root / "srt", 4321, 1234)
    os.chmod(package.root / "srt/plain.py", 0o4750)  # noqa: S103
    before = package.snapshot()
    assert package.apply()["status"] == "applied"
    found = package.snapshot()
    assert found["sglang/srt/plain.py"][:3] == ("0o104750", 4321, 1234)
    assert found["sglang/srt/payload/deep/door.py"][1:3] == (4321, 1234)
    assert found["sglang/srt/payload/deep"][1:3] == (4321, 1234)
    package.ask("rollback")
    assert package.snapshot() == before


def test_again_is_nothing(package: Package) -> None:
    package.apply()
    before = package.snapshot()
    answer = package.apply()
    assert answer["status"] == "unchanged", answer
    assert package.snapshot() == before


def test_nothing_to_do_on_a_fresh_tree(package: Package) -> None:
    before = package.snapshot()
    answer = package.apply([change("srt/plain.py", b"x = 1\n", b"x = 1\n")])
    assert answer["status"] == "unchanged"
    assert package.snapshot() == before


def test_upgrade_in_place(package: Package) -> None:
    before = package.snapshot()
    package.apply()
    answer = package.apply(second(), set={**SET, "id": "core-2"})
    assert answer["status"] == "applied", answer
    found = package.snapshot()
    assert found["sglang/srt/linked.py"] == before["sglang/srt/linked.py"]
    assert found["sglang/srt/old.py"] == before["sglang/srt/old.py"]
    assert found["sglang/srt/plain.py"][-1] == b"x = 3\n"
    assert "sglang/srt/payload/deep" not in found
    state = answer["state"]
    assert state["set"]["id"] == "core-2"
    rows = {row["path"]: row["before"] for row in state["files"]}
    assert rows == {
        "srt/plain.py": sha(b"x = 1\n"),
        "srt/hard.py": sha(b"z = 1\n"),
        "srt/payload/__init__.py": None,
        "srt/payload/more.py": None,
    }
    assert package.ask("rollback")["status"] == "rolled-back"
    assert package.snapshot() == before


def test_what_was_never_there_may_be_named(package: Package) -> None:
    before = package.snapshot()
    assert package.apply([*first(), change("srt/never.py", None, None)])["status"] == "applied"
    assert "srt/never.py" not in {row["path"] for row in package.ask("status")["state"]["files"]}
    package.ask("rollback")
    assert package.snapshot() == before


def test_upgrade_must_name_every_file(package: Package) -> None:
    package.apply()
    before = package.snapshot()
    answer = package.apply(second()[:-2], set={**SET, "id": "core-2"})
    assert answer["status"] == "refused"
    assert answer["why"]["path"] == "srt/payload/deep/door.py"
    assert package.snapshot() == before


def test_same_files_under_a_new_name(package: Package) -> None:
    swapped = package.apply()["state"]["swapped_ns"]
    assert abs(swapped - time.time_ns()) < 60 * 10**9
    answer = package.apply([{**c, "before": c["after_sha"]} for c in first()], set={**SET, "id": "other"})
    assert answer["status"] == "applied"
    assert answer["state"]["set"]["id"] == "other"
    assert answer["state"]["swapped_ns"] == swapped  # no file changed, so no process became older


def test_bytecode_that_came_since_goes_too(package: Package) -> None:
    before = package.snapshot()
    package.apply()
    for path in ("srt/plain.py", "srt/payload/__init__.py", "srt/payload/deep/door.py"):
        py_compile.compile(str(package.root / path), doraise=True)
    assert package.ask("rollback")["status"] == "rolled-back"
    assert package.snapshot() == before


def test_foreign_files_in_our_folders_stay(package: Package) -> None:
    package.apply()
    (package.root / "srt/payload/deep/notes.txt").write_text("mine")
    assert package.ask("rollback")["status"] == "rolled-back"
    assert [p.name for p in (package.root / "srt/payload").rglob("*")] == ["deep", "notes.txt"]


def test_an_edited_file_is_not_lost(package: Package) -> None:
    package.apply()
    (package.root / "srt/plain.py").write_bytes(b"x = 'mine'\n")
    before = package.snapshot()
    answer = package.ask("rollback")
    assert answer["status"] == "refused"
    assert answer["why"]["path"] == "srt/plain.py"
    assert answer["why"]["expected"] == sha(b"x = 2\n")
    assert answer["why"]["found"] == sha(b"x = 'mine'\n")
    assert answer["state"]["status"] == "edited"
    changes = [change("srt/plain.py", b"x = 'mine'\n", b"x = 3\n"), *second()[1:]]
    assert package.apply(changes, set={**SET, "id": "core-2"})["status"] == "refused"
    assert package.snapshot() == before


def test_a_file_put_back_by_hand(package: Package) -> None:
    before = package.snapshot()
    package.apply()
    (package.root / "srt/plain.py").write_bytes(b"x = 1\n")
    (package.root / "srt/hard.py").unlink()
    assert package.ask("status")["state"]["status"] == "edited"
    assert package.ask("rollback")["status"] == "rolled-back"
    assert package.snapshot() == before


def test_a_tree_that_pip_has_replaced(package: Package, tmp_path: Path) -> None:
    package.apply()
    fresh = Package(tmp_path / "other")
    stock = {name: data for name, data in fresh.sources().items() if name.endswith(".py")}
    for name, data in stock.items():
        (package.root / name).unlink(missing_ok=True)
        package.write(name, data)
    assert package.ask("status")["state"]["status"] == "replaced"
    before = package.snapshot()["sglang/srt/plain.py"]
    changes = [c for c in first() if "payload" not in c["path"]]
    changes.append(change("srt/payload/__init__.py", b"", b"new = 1\n"))
    answer = package.apply(changes)
    assert answer["status"] == "applied", answer
    assert not (package.root / "srt/payload/deep").exists()
    assert package.ask("rollback")["status"] == "rolled-back"
    assert package.snapshot()["sglang/srt/plain.py"] == before
    assert not (package.root / "srt/payload").exists()
    assert {n: d for n, d in package.sources().items() if n.endswith(".py")} == stock


def test_rollback_after_pip(package: Package) -> None:
    package.apply()
    for name, data in (
        ("plain", b"x = 1\n"),
        ("linked", b"y = 1\n"),
        ("hard", b"z = 1\n"),
        ("old", b"w = 1\n"),
    ):
        (package.root / f"srt/{name}.py").unlink(missing_ok=True)
        package.write(f"srt/{name}.py", data)
    assert package.ask("rollback")["status"] == "rolled-back"
    assert not (package.root / ".pdguard").exists()
    assert not (package.root / "srt/payload").exists()


def test_journal_tells_each_step_before_it(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    journal = package.root / ".pdguard/journal.jsonl"

    def hook(name: str, *args: object) -> None:
        if name in ("replace", "unlink") and ".pdguard" not in str(args[-1]):
            seen.append((json.loads(journal.read_text().splitlines()[-1])["path"], str(args[-1])))

    monkeypatch.setattr(steps, "hook", hook)
    assert package.apply()["status"] == "applied"
    assert len(seen) == 8
    assert all(str(package.root / told) == done for told, done in seen)


def test_originals_are_kept_by_hash(package: Package) -> None:
    package.apply()
    package.apply(second(), set={**SET, "id": "core-2"})
    kept = {p.name: p.read_bytes() for p in (package.root / ".pdguard/originals").iterdir()}
    assert all(sha(data) == name for name, data in kept.items())
    assert {b"x = 1\n", b"z = 1\n", b"compiled plain"} <= set(kept.values())
    assert b"x = 2\n" not in kept.values()


def test_a_lost_original_is_told_before_anything_moves(package: Package) -> None:
    package.apply()
    (package.root / ".pdguard/originals" / sha(b"x = 1\n")).write_bytes(b"rot")
    before = package.snapshot()
    answer = package.ask("rollback")
    assert (answer["status"], answer["why"]["expected"]) == ("refused", sha(b"x = 1\n"))
    assert package.snapshot() == before


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "other"}', '{"schema": "pdguard.harden.state/1"}']
)
def test_a_damaged_state_is_refused(package: Package, text: str) -> None:
    package.apply()
    (package.root / ".pdguard/state.json").write_text(text)
    before = package.snapshot()
    for answer in (package.ask("rollback"), package.apply()):
        assert answer["status"] == "refused", answer
        assert answer["state"]["status"] == "broken"
    assert package.snapshot() == before


def test_verify(package: Package) -> None:
    assert package.ask("verify")["status"] == "none"
    package.apply()
    assert package.ask("verify")["status"] == "verified"
    plain = package.root / "srt/plain.py"
    cached = importlib.util.cache_from_source(str(plain))
    py_compile.compile(str(plain), doraise=True)
    assert package.ask("verify")["bytecode"] == []
    os.utime(plain, ns=(OLD, OLD))
    name = os.path.relpath(cached, package.root)
    assert package.ask("verify")["bytecode"] == [{"path": name, "why": "stale"}]
    plain.write_bytes(b"x = 9\n")
    answer = package.ask("verify")
    assert answer["status"] == "differs"
    assert [row["path"] for row in answer["differs"]] == ["srt/plain.py"]


def test_compile_and_import_in_the_interpreter(package: Package) -> None:
    answer = package.apply(
        python=sys.executable, imports=["sglang.srt.plain", "sglang.srt.payload.deep.door"]
    )
    assert answer["status"] == "applied", answer
    assert answer["python"]["path"] == sys.executable
    assert answer["python"]["version"] == ".".join(str(n) for n in sys.version_info[:3])
    assert not list(package.root.rglob("payload/__pycache__"))
