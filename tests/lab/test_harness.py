"""The harness itself, without an engine: these run in the ordinary test suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml

from . import launch, netns
from .cache import Cache
from .errors import IsolationError, ProvisionError, StartError
from .lab import Engine, Lab, Router, running
from .process import Server, stop_all
from .provision import Provision
from .run import ROOT
from .session import VERSIONS_ENV, versions_from_env
from .spec import LabSpec, RoleSpec, pair

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("up", flush=True)
time.sleep(60)
"""


def server(tmp_path: Path, code: str, name: str = "s0") -> Server:
    started = Server(name, [sys.executable, "-c", code], os.environ, tmp_path / f"{name}.log")
    deadline = time.monotonic() + 20
    while "up" not in started.tail() and time.monotonic() < deadline:
        time.sleep(0.02)
    return started


def gone(pid: int) -> bool:
    """True once the process has ended (a zombie has)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def quiet(_message: str) -> None:
    """Progress nobody reads."""


def test_a_server_ends_when_asked(tmp_path: Path) -> None:
    one = server(tmp_path, SLEEPS)
    stop_all([one], grace=10)
    assert one.exit_code == -signal.SIGTERM


def test_a_stubborn_server_is_killed_with_its_children(tmp_path: Path) -> None:
    one = server(tmp_path, STUBBORN)
    members = one.members()
    assert len(members) == 2
    stop_all([one], grace=0.2)
    assert one.exit_code == -signal.SIGKILL
    assert all(map(gone, members))


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = f"""
        import os, sys, time
        from pathlib import Path
        from tests.lab.process import Server
        command = [sys.executable, "-c", {SLEEPS!r}]
        print(Server("s0", command, os.environ, Path({str(tmp_path / "s0.log")!r})).pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)


def test_building_publishes_all_or_nothing(tmp_path: Path) -> None:
    cache, target = Cache(tmp_path), tmp_path / "engines" / "x"
    with pytest.raises(FileNotFoundError), cache.building(target) as folder:
        (folder / "absent" / "half").touch()
    assert not target.exists()
    with cache.building(target) as folder:
        (folder / "whole").touch()
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_lock_keeps_others_out_and_says_who_holds_it(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from tests.lab.cache import Cache
        with Cache(Path(sys.argv[1])).locked("setup", lambda text: print(text, flush=True)):
            print("mine", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    with Cache(tmp_path).locked("setup", quiet):
        other = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert f"held by process {os.getpid()}" in other.stdout.readline()
        assert other.poll() is None
    with other:
        assert other.stdout.readline() == "mine\n"


def test_runs_are_pruned(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made = [cache.new_run_dir() for _ in range(25)]
    assert made[-1].is_dir()
    assert len(list((tmp_path / "runs").iterdir())) == 20


def test_no_engine_starts_on_a_real_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(netns, "isolated", lambda: False)
    with (
        pytest.raises(IsolationError, match=r"python -m tests\.lab\.run"),
        running(LabSpec(), Cache(tmp_path)),
    ):
        pytest.fail("an engine was started")


def test_an_empty_cache_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(netns, "isolated", lambda: True)
    spec = pair("0.5.20", router="smg")
    with pytest.raises(ProvisionError, match=r"sglang 0\.5\.20, site smg"), running(spec, Cache(tmp_path)):
        pytest.fail("an engine was started")


def test_provision_names_what_is_missing(tmp_path: Path) -> None:
    own = LabSpec(version="vendor-build", engine_root=tmp_path, backend="nixl")
    missing = Provision(Cache(tmp_path), quiet).missing(own)
    assert missing == ["the lab's virtual environment", "the model", "site nixl"]


def test_commands_follow_the_spec(tmp_path: Path) -> None:
    spec = LabSpec(
        version="0.5.20",
        prefill=RoleSpec(pool=1024, flags=("--tp-size", "2"), env=(("NAME", "value"),)),
        waiting_timeout=None,
        prefills=2,
    )
    cache = Cache(tmp_path)
    command = launch.engine_command(spec, cache, tmp_path / "model", "prefill", 1)
    assert command[:3] == [str(cache.python), "-m", "sglang.launch_server"]
    assert command[-2:] == ["--tp-size", "2"]
    for flag, value in (("--max-total-tokens", "1024"), ("--disaggregation-bootstrap-port", "21031")):
        assert command[command.index(flag) + 1] == value
    env = launch.engine_env(spec, cache, tmp_path / "stubs", "prefill")
    assert env["NAME"] == "value"
    assert env["PYTHONPATH"] == f"{tmp_path / 'stubs'}:{cache.engine('0.5.20')}"
    assert "SGLANG_DISAGGREGATION_WAITING_TIMEOUT" not in env
    assert "NAME" not in launch.engine_env(spec, cache, tmp_path / "stubs", "decode")


def test_the_callers_environment_stays_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_TOKEN", "x")
    assert "SOME_TOKEN" not in launch.engine_env(LabSpec(), Cache(tmp_path), tmp_path, "decode")
    assert "SOME_TOKEN" not in launch.router_env(Cache(tmp_path), "smg")


def test_the_cluster_file_is_the_deployment(tmp_path: Path) -> None:
    idle = server(tmp_path, SLEEPS)
    try:
        engines = (
            Engine("p0", "prefill", "http://127.0.0.1:21010", idle, 21030),
            Engine("d0", "decode", "http://127.0.0.1:21020", idle),
        )
        router = Router("r0", "smg", "http://127.0.0.1:21000", "http://127.0.0.1:21005/metrics", idle)
        lab = Lab(LabSpec(), Cache(tmp_path), tmp_path, engines, router)
        content = yaml.safe_load(lab.write_cluster_yaml().read_text(encoding="utf-8"))
    finally:
        stop_all([idle])
    prefill = {"name": "p0", "role": "prefill", "bootstrap_port": 21030}
    assert content == {
        "cluster": "lab",
        "engines": [
            {**prefill, "url": "http://127.0.0.1:21010", "node": "local"},
            {"name": "d0", "role": "decode", "url": "http://127.0.0.1:21020", "node": "local"},
        ],
        "routers": [{"name": "r0", "url": "http://127.0.0.1:21000", "kind": "smg", "node": "local"}],
        "nodes": {"local": {"transport": "local"}},
    }


def test_a_start_error_shows_the_log(tmp_path: Path) -> None:
    error = StartError("p0", "ended with exit code 1", tmp_path / "p0.log", "Traceback: it broke")
    assert "p0: ended with exit code 1" in str(error)
    assert str(error).endswith("Traceback: it broke")


def test_versions_come_from_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERSIONS_ENV, "0.5.19,0.5.23")
    assert versions_from_env() == ("0.5.19", "0.5.23")
    monkeypatch.setenv(VERSIONS_ENV, "0.4.0")
    with pytest.raises(ValueError, match=r"0\.4\.0"):
        versions_from_env()
