"""What a survey tells, and that it writes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harden.node_tree import OLD, SET, Package, change, first, killed_at, sha

SECRET = "sk-planted-secret"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Package(tmp_path)


def test_the_package_and_its_files(package: Package) -> None:
    before = package.snapshot()
    asked = ["srt/plain.py", "srt/linked.py", "srt/hard.py", "srt/none.py", "../x.py", 7]
    answer = package.ask("survey", files=asked, payload="srt/payload")
    assert package.snapshot() == before
    assert (answer["version"], answer["dist_version"]) == ("0.5.20", "0.5.20")
    assert answer["dist_info"] == "sglang-0.5.20.dist-info"
    assert answer["payload"] is False
    assert answer["may_write"] is True
    assert answer["read_only"] is False
    assert answer["free_bytes"] > 0
    assert answer["state"]["status"] == "none"
    plain, linked, hard, none, outside, number = answer["files"]
    assert (plain["sha"], plain["mode"], plain["mtime_ns"]) == (sha(b"x = 1\n"), 0o640, OLD)
    assert (plain["uid"], plain["link"], plain["unwritable"]) == (os.geteuid(), None, "")
    assert (linked["sha"], linked["link"]) == (sha(b"y = 1\n"), "../../../cache/linked.py")
    assert hard["nlink"] == 2
    assert (none["exists"], none["why"]) == (False, "")
    assert outside["why"]
    assert number["why"]


@pytest.mark.parametrize("around", ["", "..", "../../checkout"])
def test_roots_around_the_package(package: Package, around: str) -> None:
    checkout = package.site.parent / "checkout/python"
    checkout.mkdir(parents=True)
    (checkout / "sglang").symlink_to(package.root)
    answer = package.ask("survey", root=os.path.normpath(package.root / around), files=[])
    assert answer["real_root"] == os.path.realpath(package.root)
    assert answer["root"].endswith("/sglang")
    assert answer["version"] == "0.5.20"
    assert bool(answer["dist_info"]) == (around != "../../checkout")


def test_a_root_behind_a_link_of_another_name(package: Package) -> None:
    (package.site / "alias").symlink_to("sglang")
    answer = package.ask("survey", root=str(package.site / "alias"), files=[])
    assert (answer["root"], answer["real_root"]) == (
        str(package.site / "alias"),
        os.path.realpath(package.root),
    )


def test_version_without_files_of_its_own(package: Package) -> None:
    (package.root / "_version.py").unlink()
    assert package.ask("survey", files=[])["version"] == "0.5.20"
    shutil.rmtree(package.site / "sglang-0.5.20.dist-info")
    answer = package.ask("survey", files=[])
    assert (answer["status"], answer["version"], answer["dist_info"]) == ("found", "", "")


def test_states(package: Package) -> None:
    package.apply()
    state = package.ask("survey", files=[], payload="srt/payload")
    assert state["payload"] is True
    assert state["state"]["status"] == "hardened"
    assert state["state"]["set"] == SET
    assert {row["match"] for row in state["state"]["files"]} == {"after"}
    assert state["state"]["folders"] == ["srt/payload", "srt/payload/deep"]
    package.write("srt/plain.py", b"x = 1\n")
    assert package.ask("status")["state"]["status"] == "partial"
    package.write("srt/plain.py", b"x = 7\n")
    rows = {row["path"]: row for row in package.ask("status")["state"]["files"]}
    assert rows["srt/plain.py"]["match"] == "neither"
    assert (rows["srt/plain.py"]["before"], rows["srt/plain.py"]["now"]) == (sha(b"x = 1\n"), sha(b"x = 7\n"))


def test_an_interrupted_run_is_seen(package: Package) -> None:
    assert killed_at(60, package.apply)
    before = package.snapshot()
    assert package.ask("survey", files=[])["state"]["interrupted"] is True
    assert package.snapshot() == before
    package.ask("rollback")
    assert package.ask("survey", files=[])["state"]["interrupted"] is False


def test_contents_by_hash(package: Package) -> None:
    package.apply()
    wanted = [sha(b"x = 1\n"), sha(b"x = 2\n"), sha(b"none"), "junk", 7, sha(b"secret\n")]
    (package.site / "secret.py").write_bytes(b"secret\n")
    (package.root / "srt/secret.py").symlink_to("../../secret.py")
    answer = package.ask("contents", wanted=wanted, files=["srt/plain.py", "../secret.py", 7])
    assert sorted(answer["contents"]) == sorted(wanted[:2])  # type: ignore[type-var]
    assert answer["left"] == [sha(b"none"), sha(b"secret\n")]
    assert package.ask("contents", wanted="x")["contents"] == {}


def test_contents_without_a_hint(package: Package) -> None:
    answer = package.ask("contents", wanted=[sha(b"z = 1\n")])
    assert list(answer["contents"]) == [sha(b"z = 1\n")]


def _engine(package: Package, site: Path) -> subprocess.Popen[bytes]:
    """A process that looks as an engine does, and does nothing."""
    (package.root / "launch_server.py").write_text("import time\nprint(flush=True)\ntime.sleep(60)\n")
    argv = [sys.executable, "-B", "-m", "sglang.launch_server", "--port", "1", "--api-key", SECRET]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(site)})
    assert child.stdout is not None
    child.stdout.readline()
    return child


def _mine(answer: dict[str, Any], pid: int) -> list[dict[str, Any]]:
    assert SECRET not in repr(answer)
    return [row for row in answer["processes"]["seen"] if row["pid"] == pid]


def test_processes_of_this_tree(package: Package, tmp_path: Path) -> None:
    other = Package(tmp_path / "other")
    child = _engine(package, package.site)
    try:
        (row,) = _mine(package.ask("survey", files=[], processes=True), child.pid)
        assert (row["same_tree"], row["older"]) == (True, None)
        assert row["title"] == "sglang.launch_server"
        assert abs(row["started"] - time.time()) < 60
        assert _mine(other.ask("survey", files=[], processes=True), child.pid) == []
        package.apply()
        for do in ("survey", "verify"):
            (row,) = _mine(package.ask(do, files=[], processes=True), child.pid)
            assert row["older"] is True
    finally:
        child.kill()
        child.communicate()
    child = _engine(package, package.site)
    try:
        (row,) = _mine(package.ask("survey", files=[], processes=True), child.pid)
        assert row["older"] is False
    finally:
        child.kill()
        child.communicate()


def test_no_processes_unless_asked(package: Package) -> None:
    assert "processes" not in package.ask("survey", files=[])


def test_a_run_without_changes_leaves_no_trace(package: Package) -> None:
    before = package.snapshot()
    package.ask("apply", set=SET, changes=[change("srt/plain.py", b"other", b"x = 2\n"), *first()[1:]])
    assert package.snapshot() == before
