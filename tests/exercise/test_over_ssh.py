"""Exercises of an engine on a node that ssh reaches, and what is left there afterwards: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pdguard.exercise import ExerciseReport, run_exercise
from pdguard.exercise.process import EngineProcess, ExerciseError
from pdguard.transport.interface import Started, Starter
from pdguard.transport.local import LocalTransport
from pdguard.transport.ssh import SshTransport
from tests.exercise import fakes
from tests.transport.sshd import Sshd, new_key, public, sshd

DOORS = ["door.prefill.rejected", "door.prefill.valid"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(params=["local", "ssh"])
def transport(request: pytest.FixtureRequest) -> Starter:
    if request.param == "local":
        return LocalTransport()
    server: Sshd = request.getfixturevalue("node")
    return server.transport()


def run(transport: Starter, engine: str, contracts: list[str] | None = None) -> ExerciseReport:
    return run_exercise(fakes.PYTHON, engine, contracts or DOORS[:1], 30, transport)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text().endswith(".")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return path.read_text()[:-1]


def gone(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def noting(path: Path, then: str = "pass") -> str:
    """Code that notes its process and its scratch folder."""
    said = "str(os.getpid()) + ' ' + os.environ['HOME'] + '.'"
    return f"import os, time; f = open({str(path)!r}, 'w'); f.write({said}); f.close(); {then}"


def test_the_same_results_as_here(node: Sshd, tmp_path: Path) -> None:
    engine = fakes.engine(tmp_path, fakes.FIXED)
    here, there = (run(t, engine, DOORS) for t in (LocalTransport(), node.transport()))
    assert [(r.id, r.outcome, r.state) for r in there.results] == [
        ("door.prefill.rejected", "fixed", "pass"),
        ("door.prefill.valid", "queued", "pass"),
    ]
    assert there.document() == here.document()


def test_what_a_login_shell_prints_is_not_an_answer(tmp_path: Path) -> None:
    forced = tmp_path / "forced"
    forced.write_text('#!/bin/sh\necho \'{"ready": {}}\'; printf hello; exec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    forced.chmod(0o755)
    with sshd(tmp_path / "sshd", f"ForceCommand {forced}") as server:
        (result,) = run(server.transport(), fakes.engine(tmp_path / "engine")).results
    assert result.outcome == "vulnerable"


def test_the_scratch_folder_is_of_the_node_and_goes(transport: Starter, tmp_path: Path) -> None:
    note = tmp_path / "note"
    guard = noting(note, "open(os.environ['TMPDIR'] + '/file', 'w').write(os.getcwd())")
    (result,) = run(transport, fakes.engine(tmp_path / "engine", guard)).results
    assert result.outcome == "vulnerable"
    pid, _, scratch = wait_for(note).partition(" ")
    assert os.path.basename(scratch).startswith("pdguard-exercise-")
    assert not os.path.exists(scratch)
    assert gone(int(pid), 0.1)


def test_few_variables_get_through(
    transport: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDGUARD_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    guard = "import os; raise KeyError(' '.join(sorted(os.environ)))"
    (result,) = run(transport, fakes.engine(tmp_path, guard)).results
    for name in ("HOME", "PATH", "SGLANG_USE_CPU_ENGINE"):
        assert name in result.why
    for name in ("PDGUARD_API_KEY", "PYTHONPATH", "SSH_CONNECTION", "LOGNAME"):
        assert name not in result.why


def test_a_contract_that_is_under_way_ends_with_the_connection(node: Sshd, tmp_path: Path) -> None:
    note = tmp_path / "note"
    engine = fakes.engine(tmp_path / "engine", noting(note, "time.sleep(600)"))
    transport = Kept(node.transport())
    reports: list[ExerciseReport] = []
    thread = threading.Thread(target=lambda: reports.append(run(transport, engine)))
    thread.start()
    pid, _, scratch = wait_for(note).partition(" ")
    assert os.path.isdir(scratch)
    os.kill(transport.pids[0], signal.SIGKILL)
    thread.join(20)
    (result,) = reports[0].results
    assert result.state == "not-run"
    assert gone(int(pid))
    assert not left(scratch)


class Kept:
    """Remembers the processes that were started on this side."""

    def __init__(self, transport: SshTransport) -> None:
        self.transport, self.pids = transport, list[int]()

    def start(self, argv: Sequence[str], environment: Mapping[str, str], keep: Sequence[str] = ()) -> Started:
        started = self.transport.start(argv, environment, keep)
        self.pids.append(started.child.pid)
        return started


def left(path: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while os.path.exists(path):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)
    return False


def test_time_that_is_up_ends_it_over_there(transport: Starter, tmp_path: Path) -> None:
    note = tmp_path / "note"
    engine = fakes.engine(
        tmp_path / "engine", sglang__srt__managers__scheduler=noting(note, "time.sleep(600)")
    )
    begun = time.monotonic()
    (result,) = run_exercise(fakes.PYTHON, engine, DOORS[:1], 5, transport).results
    assert time.monotonic() - begun < 15
    assert "did not answer" in result.why
    pid, _, scratch = wait_for(note).partition(" ")
    assert gone(int(pid))
    assert not left(scratch)


def test_nothing_outlives_pdguard_itself(tmp_path: Path) -> None:
    note = tmp_path / "note"
    engine = fakes.engine(tmp_path / "engine", noting(note, "time.sleep(600)"))
    arguments = f"{fakes.PYTHON!r}, {engine!r}, {DOORS[:1]!r}"
    code = f"from pdguard.exercise import run_exercise; run_exercise({arguments})"
    child = subprocess.Popen([sys.executable, "-c", code])
    pid, _, scratch = wait_for(note).partition(" ")
    child.kill()
    child.wait(10)
    assert gone(int(pid))
    assert not left(scratch)


@pytest.mark.parametrize(
    ("deed", "words"),
    [("import os; os._exit(7)", "exit 7"), ("raise SystemExit(3)", None)],
)
def test_an_engine_that_ends_when_imported(
    transport: Starter, tmp_path: Path, deed: str, words: str | None
) -> None:
    engine = fakes.engine(tmp_path, sglang__srt__disaggregation__prefill=deed)
    (result,) = run(transport, engine).results
    assert result.state == "not-run"
    assert words is None or words in result.why


def test_why_a_node_is_not_reached(node: Sshd, tmp_path: Path) -> None:
    engine = fakes.engine(tmp_path / "engine")
    (result,) = run_exercise("/nowhere/python3", engine, DOORS[:1], 30, node.transport()).results
    assert result.why.startswith("the node has no such program, expected /nowhere/python3, found none")
    transport = node.transport()
    known = node.config.read_text().replace(str(node.known_hosts), str(tmp_path / "known"))
    node.config.write_text(known)
    (tmp_path / "known").write_text(f"[127.0.0.1]:{node.port} {public(new_key(tmp_path / 'other'))}\n")
    (result,) = run(transport, engine).results
    assert result.why.startswith("ssh: the host key of the node")


def test_a_side_that_has_ended_says_so_again_and_again(tmp_path: Path) -> None:
    engine = fakes.engine(tmp_path)
    with EngineProcess(fakes.PYTHON, engine, time.monotonic() + 20) as process:
        process.write({"run": "door.prefill", "limit": "never"})  # nothing that the far side could read
        for _ in range(3):
            with pytest.raises(ExerciseError, match="ended early"):
                process.read(time.monotonic() + 10)
        with pytest.raises(ExerciseError, match="ended early"):
            process.write({"run": "door.prefill"})
