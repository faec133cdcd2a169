"""Killed, or failing, at every single call that writes: the tree is wholly old or wholly new."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdguard.harden.node import main, steps
from tests.harden.node_tree import SET, Breaker, Package, Snapshot, change, first, killed_at, second

pytestmark = pytest.mark.timeout(900)  # hundreds of processes, on machines with other work too
NEWER = {**SET, "id": "core-2"}


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a folder: hundreds of trees are made here."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill does not lose what the kernel already has


def _nothing(package: Package) -> None:
    """The tree as it was installed."""


def _hardened(package: Package) -> None:
    assert package.apply()["status"] == "applied"


def _first(package: Package) -> dict[str, Any]:
    return package.apply()


def _second(package: Package) -> dict[str, Any]:
    return package.apply(second(), set=NEWER)


def _rollback(package: Package) -> dict[str, Any]:
    return package.ask("rollback")


RUNS = pytest.mark.parametrize(
    ("prepare", "run", "good"),
    [
        pytest.param(_nothing, _first, "applied", id="apply"),
        pytest.param(_hardened, _second, "applied", id="upgrade"),
        pytest.param(_hardened, _rollback, "rolled-back", id="rollback"),
    ],
)
Prepare = Callable[[Package], None]
Run = Callable[[Package], dict[str, Any]]


class Trees:
    """Fresh packages in the same state."""

    def __init__(self, path: Path, prepare: Prepare) -> None:
        self.path, self.prepare, self.number = path, prepare, 0

    def fresh(self) -> Package:
        self.number += 1
        package = Package(self.path / str(self.number))
        self.prepare(package)
        return package

    def done(self) -> None:
        shutil.rmtree(self.path / str(self.number))


def _plain(found: Snapshot) -> Snapshot:
    """Without what differs from one tree to the next: our own folder, and the times of new files."""
    return {
        path: (*row[:3], row[5], row[6]) if len(row) > 3 else row
        for path, row in found.items()
        if "/.pdguard" not in path
    }


def _killed(trees: Trees, run: Run) -> Iterator[Package]:
    """A package after a run that was killed at its first, second, … writing call."""
    for number in range(1, 1000):
        package = trees.fresh()
        if not killed_at(number, lambda tree=package: run(tree)):  # type: ignore[misc]
            assert number > 20
            trees.done()
            return
        yield package
        trees.done()
    raise AssertionError


def _temporary(package: Package) -> list[Path]:
    return list(package.root.rglob(".pdguard-*"))


@RUNS
def test_killed_then_rolled_back(tmp_path: Path, prepare: Prepare, run: Run, good: str) -> None:
    stock = Package(tmp_path / "stock").snapshot()
    for package in _killed(Trees(tmp_path, prepare), run):
        answer = package.ask("rollback")
        assert answer["status"] in ("rolled-back", "unchanged"), answer
        assert package.snapshot() == stock
    del good


@RUNS
def test_killed_then_run_again(tmp_path: Path, prepare: Prepare, run: Run, good: str) -> None:
    trees = Trees(tmp_path, prepare)
    package = trees.fresh()
    old = package.snapshot()
    assert run(package)["status"] == good
    new = _plain(package.snapshot())
    for package in _killed(trees, run):
        state = package.ask("status")["state"]
        assert state["status"] != "broken", state
        answer = run(package)
        assert answer["status"] in (good, "unchanged"), answer
        assert _plain(package.snapshot()) == new
        assert not _temporary(package)
        if run is _rollback:
            assert not (package.root / ".pdguard").exists()
        else:
            assert package.ask("verify")["status"] == "verified"
            assert package.ask("rollback")["status"] == "rolled-back"
    assert _plain(old) != new


@RUNS
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_call_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Prepare, run: Run, good: str, code: int
) -> None:
    trees = Trees(tmp_path, prepare)
    seen = set()
    for number in range(1, 1000):
        package = trees.fresh()
        before, breaker = package.snapshot(), Breaker(number, code)
        with monkeypatch.context() as patch:
            patch.setattr(steps, "hook", breaker)
            answer = run(package)
        seen.add((breaker.broke, answer["status"]))
        if answer["status"] == good and (good != "rolled-back" or answer["state"]["status"] == "none"):
            assert not _temporary(package)  # it failed after the commit, or in something that has a way round
        else:
            assert answer["status"] in ("refused", "rolled-back"), answer
            assert answer["why"]["found"] == os.strerror(code).lower()
            assert package.snapshot() == before
        assert not answer["state"]["interrupted"]
        trees.done()
        if not breaker.broke:
            break
    assert {("replace", "refused" if good == "rolled-back" else "rolled-back"), ("write", "refused")} <= seen


@RUNS
def test_a_disk_that_stays_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Prepare, run: Run, good: str
) -> None:
    """Going back needs no room: names are put back, nothing is written."""
    trees = Trees(tmp_path, prepare)
    for number in range(1, 1000):
        package = trees.fresh()
        before = package.snapshot()
        breaker = Breaker(number, errno.ENOSPC, ("create", "open", "write", "mkdir", "symlink", "link"))
        with monkeypatch.context() as patch:
            patch.setattr(steps, "hook", breaker)
            answer = run(package)
        if answer["status"] != good:
            assert answer["status"] in ("refused", "rolled-back"), answer
            assert package.snapshot() == before
        trees.done()
        if not breaker.broke:
            break


@RUNS
def test_everything_fails_from_some_call_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Prepare, run: Run, good: str
) -> None:
    """Where not even going back is possible the answer says so, and a later rollback does it."""
    trees = Trees(tmp_path, prepare)
    stock = Package(tmp_path / "stock").snapshot()
    lasting = ("create", "open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir", "link", "chmod")
    statuses = set()
    for number in range(1, 1000):
        package = trees.fresh()
        breaker = Breaker(number, errno.EIO, lasting)
        with monkeypatch.context() as patch:
            patch.setattr(steps, "hook", breaker)
            answer = run(package)
        statuses.add(answer["status"])
        if answer["status"] == "failed":
            assert answer["why"]["path"], answer
            assert answer["state"]["interrupted"]
        assert package.ask("rollback")["status"] in ("rolled-back", "unchanged")
        assert package.snapshot() == stock
        trees.done()
        if not breaker.broke:
            break
    assert statuses >= {"failed", "refused", good}


@RUNS
def test_going_back_is_killed_too(tmp_path: Path, prepare: Prepare, run: Run, good: str) -> None:
    """A run dies in the middle of the swap; then the recovery dies at each of its own calls."""
    stock = Package(tmp_path / "stock").snapshot()
    middle = _middle(tmp_path / "probe", prepare, run)

    def interrupted(package: Package) -> None:
        prepare(package)
        assert killed_at(middle, lambda: run(package))

    for package in _killed(Trees(tmp_path / "trees", interrupted), _rollback):
        assert package.ask("rollback")["status"] in ("rolled-back", "unchanged")
        assert package.snapshot() == stock
    del good


def _middle(path: Path, prepare: Prepare, run: Run) -> int:
    """The writing call at which the fourth file is replaced or removed."""
    package = Trees(path, prepare).fresh()
    calls: list[bool] = []

    def hook(name: str, *args: Any) -> None:
        target = str(args[-1])
        if name != "fsync":
            calls.append(name in ("replace", "unlink") and "/.pdguard" not in target)

    steps.hook, kept = hook, steps.hook
    try:
        run(package)
    finally:
        steps.hook = kept
    return [at for at, counts in enumerate(calls, 1) if counts][3]


def test_an_edit_after_an_interrupted_run_is_not_lost(tmp_path: Path) -> None:
    middle = _middle(tmp_path / "probe", _nothing, _first)
    package = Package(tmp_path / "tree")
    killed_at(middle, package.apply)
    (package.root / "srt/plain.py").write_bytes(b"x = 'mine'\n")
    before = package.snapshot()
    for answer in (package.ask("rollback"), package.apply()):
        assert answer["status"] == "failed"
        assert answer["why"]["path"] == "srt/plain.py"
        assert "Move it away" in answer["why"]["todo"]
        assert package.snapshot() == before
    (package.root / "srt/plain.py").unlink()
    assert package.ask("rollback")["status"] == "rolled-back"
    assert package.sources() == Package(tmp_path / "stock").sources()


def test_an_edit_in_the_middle_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package(tmp_path)
    before = package.snapshot()

    def hook(name: str, *args: Any) -> None:
        if name == "replace" and str(args[-1]).endswith("srt/plain.py"):
            (package.root / "srt/hard.py").unlink()
            package.write("srt/hard.py", b"z = 'mine'\n")

    monkeypatch.setattr(steps, "hook", hook)
    answer = package.apply()
    assert answer["status"] == "rolled-back"
    assert answer["why"]["path"] == "srt/hard.py"
    after = package.snapshot()
    assert after.pop("sglang/srt/hard.py")[-1] == b"z = 'mine'\n"
    before.pop("sglang/srt/hard.py")
    assert after == before


@pytest.mark.parametrize(
    ("data", "imports", "what", "found"),
    [
        (b"def broken(:\n", [], "a changed file does not compile", "SyntaxError"),
        (b"1 / 0\n", ["sglang.srt.plain"], "a module does not import", "ZeroDivisionError"),
        (
            b"import os; os._exit(3)\n",
            ["sglang.srt.plain"],
            "a module does not import",
            "the interpreter died",
        ),
        (b"import none", ["sglang.srt.plain"], "a module does not import", "ModuleNotFoundError"),
        (b"import time; time.sleep(60)\n", ["sglang.srt.plain"], "the interpreter did not finish", "longer"),
    ],
)
@pytest.mark.parametrize("python", ["", sys.executable])
def test_code_that_does_not_work_goes_back(
    tmp_path: Path, data: bytes, imports: list[str], what: str, found: str, python: str
) -> None:
    package = Package(tmp_path)
    before = package.snapshot()
    changes = [change("srt/plain.py", b"x = 1\n", data), *first()[1:]]
    answer = package.apply(changes, python=python, imports=imports, seconds=2)
    if (
        not python and found != "SyntaxError"
    ):  # nothing is imported by an interpreter that is not the engine's
        assert answer["status"] == "applied"
        return
    assert (answer["status"], answer["why"]["what"], answer["why"]["found"]) == ("rolled-back", what, found)
    assert package.snapshot() == before


def test_an_import_that_never_worked_is_told_and_proves_nothing(tmp_path: Path) -> None:
    package = Package(tmp_path)
    package.write("srt/other.py", b"import no_such_module\n")
    answer = package.apply(python=sys.executable, imports=["sglang.srt.other", "sglang.srt.plain"])
    assert answer["status"] == "applied"
    assert answer["python"]["lost"] == ["sglang.srt.other: ModuleNotFoundError"]
    assert answer["python"]["imported"] == ["sglang.srt.plain"]


def test_a_package_that_does_not_import_at_all_proves_nothing(tmp_path: Path) -> None:
    package = Package(tmp_path)
    package.write("__init__.py", b"raise RuntimeError\n")
    answer = package.apply(python=sys.executable, imports=["sglang.srt.plain"])
    assert (answer["status"], answer["python"]["imported"]) == ("applied", [])
    assert answer["python"]["lost"] == ["sglang.srt.plain: RuntimeError"]


def test_a_signal_in_the_middle_goes_back(tmp_path: Path) -> None:
    package = Package(tmp_path)
    before = package.snapshot()
    slow = [change("srt/plain.py", b"x = 1\n", b"import time; time.sleep(60)\n"), *first()[1:]]
    code = "import json, sys; from pdguard.harden.node import main; main.run(sys.stdin.buffer.readline())"
    request = {"do": "apply", "root": str(package.root), "set": SET, "changes": slow}
    request |= {"python": sys.executable, "imports": ["sglang.srt.plain"]}
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(json.dumps(request).encode() + b"\n")
    child.stdin.close()
    child.stdin = None
    end = time.monotonic() + 30
    while (package.root / "srt/plain.py").read_bytes() == b"x = 1\n" and time.monotonic() < end:
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=30)
    answer = json.loads(output)
    assert (answer["status"], answer["why"]["found"]) == ("rolled-back", "Stop")
    assert package.snapshot() == before
    assert answer["schema"] == main.SCHEMA
