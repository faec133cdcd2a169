"""What is refused before anything is changed, and that nothing then is."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdguard.harden.node import check, plan, steps
from pdguard.harden.node.entry import Refused
from pdguard.harden.node.places import checked
from tests.harden.node_tree import SET, Package, change, first, second, sha

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can mount, or become another user")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Package(tmp_path)


def refused(package: Package, changes: Any = None, **more: Any) -> dict[str, str]:
    """The reason, where nothing at all was changed."""
    before = package.snapshot()
    answer = package.ask("apply", **{"set": SET, "changes": first() if changes is None else changes, **more})
    assert answer["status"] == "refused", answer
    assert package.snapshot() == before
    why: dict[str, str] = answer["why"]
    return why


def test_wrong_hash(package: Package) -> None:
    package.write("srt/hard.py", b"z = 'edited'\n")
    why = refused(package)
    assert (why["path"], why["expected"]) == ("srt/hard.py", sha(b"z = 1\n"))
    assert why["found"] == sha(b"z = 'edited'\n")


def test_a_file_that_should_not_be_there(package: Package) -> None:
    package.write("srt/payload/__init__.py", b"mine = 1\n")
    why = refused(package)
    assert (why["path"], why["expected"]) == ("srt/payload/__init__.py", "no file")


def test_a_file_that_is_gone(package: Package) -> None:
    (package.root / "srt/old.py").unlink()
    assert refused(package)["found"] == "no file"


@pytest.mark.parametrize(
    "path",
    [
        *("../cache/hard.py", "/etc/passwd", "srt/../../x.py", "srt//plain.py", "./srt/plain.py", "", "srt/"),
        *(
            ".pdguard/state.json",
            "srt/__pycache__/plain.cpython-311.pyc",
            "srt/a\nb.py",
            "srt/\0",
            "srt/.x.py",
        ),
        *("srt/plain.pyc", "srt/plain.py/x.py", "x" * 200, "a/" * 600 + "b"),
    ],
)
def test_paths_that_lead_out(package: Package, path: str) -> None:
    assert refused(package, [change(path, None, b"x = 1\n")])["what"]
    assert refused(package, [*first(), change(path, None, b"x = 1\n")])["what"]


@pytest.mark.parametrize("target", ["../../../shared", "real"])
def test_a_folder_that_is_a_link(package: Package, target: str) -> None:
    (package.root / "srt/real").mkdir()
    (package.site.parent / "shared").mkdir()
    (package.root / "srt/alias").symlink_to(target)
    (package.root / "srt/alias/shared.py").write_bytes(b"a = 1\n")
    why = refused(package, [change("srt/alias/shared.py", b"a = 1\n", b"a = 2\n")])
    assert "link" in why["what"]


def test_what_is_no_file(package: Package) -> None:
    os.mkfifo(package.root / "srt/pipe.py")
    (package.root / "srt/lost.py").symlink_to("nowhere")
    (package.root / "srt/folder.py").mkdir()
    for name in ("pipe", "lost", "folder"):
        path = f"srt/{name}.py"
        answer = package.ask("apply", set=SET, changes=[change(path, None, b"")])
        assert (answer["status"], answer["why"]["path"]) == ("refused", str(package.root / path))


@pytest.mark.parametrize(
    "changes",
    [
        *([], None, "x", [1], [{}], [{"path": "srt/plain.py"}]),
        [{**change("srt/plain.py", b"x = 1\n", b"x = 2\n"), "after_sha": "0" * 64}],
        [{**change("srt/plain.py", b"x = 1\n", b"x = 2\n"), "after": "!!"}],
        [{**change("srt/plain.py", b"x = 1\n", b"x = 2\n"), "after": base64.b64encode(b"junk").decode()}],
        [{**change("srt/plain.py", b"x = 1\n", b"x = 2\n"), "before": "short"}],
        [{**change("srt/plain.py", b"x = 1\n", b"x = 2\n"), "before": 7}],
        [change("srt/plain.py", b"x = 1\n", b"x = 2\n")] * 2,
        [change("srt/new", None, b""), change("srt/new/x.py", None, b"")],
    ],
)
def test_changes_that_make_no_sense(package: Package, changes: Any) -> None:
    assert refused(package, [] if changes is None else changes)["what"]


def test_a_bomb_is_not_unpacked(package: Package) -> None:
    bomb = base64.b64encode(zlib.compress(bytes(64 * 1024 * 1024))).decode()
    item = {**change("srt/plain.py", b"x = 1\n", b""), "after": bomb}
    assert "too many" in refused(package, [item])["what"]


@pytest.mark.parametrize(
    "more",
    [
        {"python": "/no/such/python"},
        {"python": "python3"},
        {"python": "/bin/false"},
        {"python": "/etc/passwd"},
        {"python": "/"},
        {"python": 7},
        {"imports": ["a b"]},
        {"imports": "sglang"},
        {"set": None},
    ],
)
def test_interpreters_that_are_none(package: Package, more: dict[str, Any]) -> None:
    assert refused(package, **more)["what"]


def test_an_interpreter_that_fails(package: Package, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    why = refused(package, python=str(python))
    assert (why["path"], why["found"]) == (str(python), "exit code 3")
    python.chmod(0o644)
    assert refused(package, python=str(python))["what"] == "the interpreter may not be run"


def test_a_second_run_at_the_same_time(package: Package) -> None:
    """The lock is that of the kernel, held by a process of its own."""
    package.apply()
    lock = package.root / ".pdguard/lock"
    code = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.flock(f,fcntl.LOCK_EX); f.truncate(0);"
    code += "import os; f.write(str(os.getpid())); f.flush(); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        before = package.snapshot()
        for answer in (package.ask("rollback"), package.apply(second())):
            assert answer["status"] == "refused"
            assert answer["why"]["found"] == f"pid {child.pid}"
            assert package.snapshot() == before
        assert package.ask("status")["state"]["running"] == child.pid
    finally:
        child.communicate()
    assert package.ask("status")["state"]["running"] is None
    assert package.ask("rollback")["status"] == "rolled-back"


def test_the_lock_is_held_from_the_first_step_to_the_last(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[str] = []

    def hook(name: str, *args: object) -> None:
        lock = package.root / ".pdguard/lock"
        if args[0] == str(lock) or name in ("mkdir", "rmdir") or not lock.exists():
            return
        with lock.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            free.append(name)

    monkeypatch.setattr(steps, "hook", hook)
    package.apply()
    package.ask("rollback")
    assert free == []


def test_a_state_folder_that_is_a_link(package: Package, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (package.root / ".pdguard").symlink_to(tmp_path / "elsewhere")
    assert refused(package)["what"] == "the state folder is not a folder"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_too_little_room_by_count(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "room", lambda _: check.MARGIN - 1)
    assert refused(package)["what"] == "too little room"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folder = tmp_path / "mounted"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "pdguard-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@needs_root
def test_a_full_disk(mounted: Path) -> None:
    package = Package(mounted)
    with (mounted / "filler").open("wb") as file:
        file.write(bytes(check.room(str(mounted)) - 300_000))
    assert refused(package)["what"] == "too little room"


@needs_root
def test_a_read_only_file_system(mounted: Path) -> None:
    package = Package(mounted)
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    assert refused(package)["what"] == "the file system is read-only"
    assert package.ask("survey", files=[])["read_only"] is True


@needs_root
def test_a_file_that_is_mounted(mounted: Path, tmp_path: Path) -> None:
    package = Package(tmp_path / "tree")
    (mounted / "plain.py").write_bytes(b"x = 1\n")
    target = str(package.root / "srt/plain.py")
    subprocess.run(["mount", "--bind", str(mounted / "plain.py"), target], check=True)
    try:
        assert refused(package)["found"] == "something is mounted over it"
    finally:
        subprocess.run(["umount", target], check=True)


@needs_root
def test_an_immutable_file(package: Package) -> None:
    target = str(package.root / "srt/plain.py")
    if shutil.which("chattr") is None:
        pytest.skip("no chattr")
    if subprocess.run(["chattr", "+i", target], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        why = refused(package)
        assert (why["path"], why["found"]) == ("srt/plain.py", "it is immutable")
    finally:
        subprocess.run(["chattr", "-i", target], check=True)


def _as_nobody(package: Package, do: str) -> dict[str, Any]:
    """The answer that another user gets."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            answer = package.apply() if do == "apply" else package.ask(do, files=["srt/plain.py"])
            os.write(write, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(data)
    return found


@pytest.fixture
def open_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103
        yield Package(Path(folder))


@needs_root
def test_a_folder_of_somebody_else(open_package: Package) -> None:
    os.chmod(open_package.root / "srt/plain.py", 0o644)
    before = open_package.snapshot()
    answer = _as_nobody(open_package, "apply")
    assert (answer["status"], answer["why"]["what"]) == ("refused", "the folder may not be written")
    found = _as_nobody(open_package, "survey")
    assert found["may_write"] is False
    assert found["files"][0]["unwritable"] == "the folder may not be written"
    assert open_package.snapshot() == before


@needs_root
def test_a_read_only_folder(open_package: Package) -> None:
    for folder, folders, names in os.walk(open_package.site):
        for name in [".", *folders, *names]:
            os.chown(os.path.join(folder, name), 65534, 65534, follow_symlinks=False)
    os.chmod(open_package.root / "srt", 0o555)  # noqa: S103
    before = open_package.snapshot()
    answer = _as_nobody(open_package, "apply")
    assert (answer["status"], answer["why"]["found"]) == ("refused", "the folder may not be written")
    assert open_package.snapshot() == before
    os.chmod(open_package.root / "srt", 0o755)  # noqa: S103
    before = open_package.snapshot()
    assert _as_nobody(open_package, "apply")["status"] == "applied"
    assert _as_nobody(open_package, "rollback")["status"] == "rolled-back"
    assert open_package.snapshot() == before


@needs_root
def test_a_file_of_somebody_else(open_package: Package) -> None:
    for folder, folders, _ in os.walk(open_package.root):
        for name in [".", *folders]:
            os.chmod(os.path.join(folder, name), 0o777)  # noqa: S103
    os.chmod(open_package.root / "srt/plain.py", 0o644)
    before = open_package.snapshot()
    answer = _as_nobody(open_package, "apply")
    assert (answer["status"], answer["why"]["found"]) == ("refused", "it has another owner (0)")
    assert open_package.snapshot() == before


@pytest.mark.parametrize("do", ["survey", "contents", "apply", "rollback", "verify", "status"])
def test_roots_that_are_none(tmp_path: Path, do: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "sglang").mkdir()
    roots = (
        tmp_path / "none",
        tmp_path / "file",
        tmp_path / "empty",
        tmp_path / "sglang",
        tmp_path,
        "sglang",
    )
    package = Package(tmp_path / "good")
    for root in (*(str(r) for r in roots), "", "/a\0b", None, 7):
        answer = package.ask(do, root=root)
        assert answer["status"] == "refused", answer
        assert answer["why"]["what"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "good", "sglang"]


def test_an_unknown_operation(package: Package) -> None:
    for do in ("format", None, 7, ["apply"]):
        assert package.ask(do)["status"] == "refused"  # type: ignore[arg-type]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.sampled_from(["..", ".", "srt", "a.py", "", "/", "x", ".pdguard", "\0", "é", "a b"]), max_size=6
    )
)
def test_an_allowed_path_stays_below(tmp_path: Path, parts: list[str]) -> None:
    path = "/".join(parts)
    try:
        good = checked(str(tmp_path), path)
    except Refused:
        return
    full = os.path.normpath(os.path.join(tmp_path, good))
    assert full.startswith(f"{tmp_path}/")
    assert os.path.relpath(full, tmp_path) == path
    assert not path.startswith(".")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "path": JSON | st.sampled_from(["srt/a.py", "srt/b.py", "../x.py"]),
        "before": JSON | st.just("a" * 64),
        "after": JSON | st.just(base64.b64encode(zlib.compress(b"x")).decode()),
        "after_sha": JSON | st.just(sha(b"x")),
    },
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(JSON | st.lists(ITEM, max_size=3))
def test_any_changes_are_refused_or_plain(tmp_path: Path, raw: Any) -> None:
    try:
        found = plan.changes(str(tmp_path), raw)
    except Refused:
        return
    assert len({c.path for c in found}) == len(found) > 0
    for one in found:
        assert (one.after is None) == (one.sha is None)
        assert one.after is None or sha(one.after) == one.sha
