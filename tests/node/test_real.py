"""The script as it is piped, on real processes of this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdguard.node.bundle import script
from pdguard.transport.interface import Json
from pdguard.transport.local import LocalTransport
from tests.node.tree import HOLD

SERVER = """
import socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
sys.stdout.write("up\\n"); sys.stdout.flush()
time.sleep(60)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of the engine's name, so that the command line is the real one."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    (tmp_path / "sglang" / "launch_server.py").write_text(SERVER)
    return tmp_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(args: list[str], folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(args, cwd=folder, env=env, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child
    finally:
        child.terminate()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()


def ask(port: int, python: str = sys.executable) -> Any:
    request: dict[str, Json] = {"engines": [{"name": "e", "port": port, "host": "127.0.0.1"}]}
    answer = LocalTransport(python).run_script(script(), request, 30)
    assert isinstance(answer, dict)
    return answer["engines"][0]


def pythons() -> list[str]:
    found = [sys.executable]
    for version in ("3.10", "3.12", "3.13"):
        roots = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        found += [str(roots[0])] if roots else [p for p in [shutil.which(f"python{version}")] if p]
    return [p for p in found if _runs(p)]


def _runs(python: str) -> bool:
    """A name on PATH may be a shim without an interpreter behind it."""
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("python", pythons())
def test_a_listening_process(package: Path, python: str) -> None:
    port = free_port()
    args = [sys.executable, "-m", "sglang.launch_server", "--port", str(port), "--api-key", "sk-1"]
    with running(args, package, {HOLD: "on", "SECRET": "sk-2"}) as child:
        found = ask(port, python)
    assert found["status"] == "found"
    process = found["process"]
    assert process["pid"] == child.pid
    assert abs(process["started"] - time.time()) < 60
    assert process["env"]["values"] == {HOLD: "on"}
    assert process["argv"]["args"] == ["--port", str(port), "--?", "?"]
    assert "sk-" not in repr(found)


def test_below_a_shell(package: Path) -> None:
    port = free_port()
    line = f"{HOLD}=on {sys.executable} -m sglang.launch_server --port {port} --page-size \\\n 64; true"
    with running(["sh", "-c", line], package, {}) as child:
        found = ask(port)["process"]
        assert found["pid"] != child.pid
        assert child.pid in found["chain"]
        subprocess.run(["kill", str(found["pid"])], check=True)  # the shell's own child, and so ours
    assert found["env"]["values"] == {HOLD: "on"}
    assert found["argv"]["args"][-2:] == ["--page-size", "64"]


RETITLED = """
import ctypes, os, socket, sys, time
if os.fork() == 0:
    pass
else:
    sys.stdout.write("up\\n"); sys.stdout.flush()
    time.sleep(60)
    sys.exit()
def overwrite(start, end, text):
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, min(len(text), end - start - 1))
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
arg_start, arg_end, env_start, env_end = (int(fields[i]) for i in (45, 46, 47, 48))
overwrite(arg_start, arg_end, b"sglang::tokenizer_worker:1")
overwrite(env_start, env_end, b"")
s = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
time.sleep(60)
"""


def test_retitled_child_listens(package: Path) -> None:
    """What setproctitle does, done by hand: arguments and environment of the listener are overwritten."""
    (package / "sglang" / "launch_server.py").write_text(RETITLED)
    port = free_port()
    args = [sys.executable, "-m", "sglang.launch_server", "--port", str(port)]
    with running(args, package, {HOLD: "0", "PORT": str(port)}) as child:
        deadline = time.monotonic() + 20
        while (found := ask(port))["status"] == "none" and time.monotonic() < deadline:
            time.sleep(0.1)
        worker = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])
        assert not Path(f"/proc/{worker}/environ").read_bytes().strip(b"\0")
        subprocess.run(["kill", str(worker)], check=True)
    assert found["process"]["pid"] == child.pid
    assert found["process"]["titles"] == ["sglang::tokenizer_worker:1"]
    assert found["process"]["env"]["values"] == {HOLD: "0"}


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("package_name", "version", "built"),
    [
        ("sglang-router", "0.3.2", "2026-01-15"),
        ("smg", "1.12.0", "2026-10-08"),
        ("smg", "1.13.0", "2026-10-15"),
    ],
)
def test_build_date_in_real_wheels(package_name: str, version: str, built: str, tmp_path: Path) -> None:
    import zipfile

    from pdguard.node import router
    from pdguard.node.procfs import Clock
    from tests.wheels import wheel

    with zipfile.ZipFile(wheel(version, package_name)) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".so"))
        archive.extract(member, tmp_path)
    assert router.built(str(tmp_path / member), Clock(20)) == built
