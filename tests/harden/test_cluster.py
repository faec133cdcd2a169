"""`pdguard harden cluster.yaml`: every package that engines import, on this machine and over ssh."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harden.command import Done
from tests.harden.packages import contents, install
from tests.node.test_real import SERVER, running
from tests.transport.sshd import Sshd, free_port, sshd

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]


class Fleet:
    """Three engines of two packages: p0 and d0 share one, d1 has its own."""

    def __init__(self, folder: Path, stack: ExitStack, version: str = "0.5.20") -> None:
        self.folder = folder
        self.shared = install(version, folder / "shared")
        self.own = install(version, folder / "own")
        self.ports, self.pids = {}, {}
        for name, package in (("p0", self.shared), ("d0", self.shared), ("d1", self.own)):
            (package / "__init__.py").write_text("")
            (package / "launch_server.py").write_text(SERVER.replace("sleep(60)", "sleep(600)"))
            self.ports[name] = free_port()
            args = [sys.executable, "-m", "sglang.launch_server", "--port", str(self.ports[name])]
            child = stack.enter_context(running(args, package.parent, {}))
            self.pids[name] = child.pid

    def cluster(self, first: str = "{transport: local}", second: str = "{transport: local}") -> Path:
        file = self.folder / "cluster.yaml"
        role = {"p0": "prefill", "d0": "decode", "d1": "decode"}
        node = {"p0": "a", "d0": "a", "d1": "b"}
        engines = "\n".join(
            f'  - {{name: {n}, role: {role[n]}, url: "http://127.0.0.1:{port}", node: {node[n]}}}'
            for n, port in self.ports.items()
        )
        file.write_text(
            f"cluster: test\nengines:\n{engines}\nnodes:\n  a: {first}\n  b: {second}\n"
            "policy: {request_timeout: 0.5, run_timeout: 30}\n"
        )
        return file


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def test_every_package_once_with_its_engines(fleet: Fleet) -> None:
    done = Done(str(fleet.cluster()), "--backport", "v0.5.20", "--no-diff", "--format", "json")
    assert done.code == 0, done.out + done.err
    packages = {p["root"]: p for p in done.json["packages"]}
    assert packages[str(fleet.shared)]["engines"] == ["p0", "d0"]
    assert packages[str(fleet.own)]["engines"] == ["d1"]
    assert {p["pid"] for p in packages[str(fleet.shared)]["processes"]} == {
        fleet.pids["p0"],
        fleet.pids["d0"],
    }


def test_apply_tells_what_to_restart_and_leaves_it_running(fleet: Fleet) -> None:
    file = str(fleet.cluster())
    done = Done(file, "--backport", "v0.5.20", "--apply", "--yes", "--no-exercise")
    assert done.code == 0, done.out + done.err
    assert done.out.count("APPLIED") == 2
    assert "prefill first: p0, d0, d1" in done.out
    assert str(fleet.pids["d1"]) in done.out
    status = Done(file, "--status", "--format", "json").json["packages"]
    assert {p["status"] for p in status} == {"hardened"}
    assert all(process["stale"] for p in status for process in p["processes"])
    back = Done(file, "--rollback", "--yes")
    assert back.out.count("RESTORED") == 2


def test_the_first_failure_stops_the_rest(fleet: Fleet) -> None:
    file = str(fleet.cluster())
    text = (fleet.shared / "srt/disaggregation/prefill.py").read_text()
    before = contents(fleet.own)
    (fleet.shared / "srt/disaggregation/prefill.py").write_text(text.replace("create_sender", "make_sender"))
    done = Done(file, "--backport", "v0.5.20", "--apply", "--yes", "--no-exercise")
    assert done.code == 30
    assert contents(fleet.own) == before
    one = Done(file, "--backport", "v0.5.20", "--apply", "--yes", "--no-exercise", "--node", "b")
    assert one.code == 0, one.out + one.err
    assert contents(fleet.own) != before


def test_what_cannot_be_reached_is_told_and_is_no_success(fleet: Fleet) -> None:
    fleet.ports["d1"] = free_port()
    done = Done(str(fleet.cluster()), "--backport", "v0.5.20", "--no-diff")
    assert done.code == 3
    assert "NOT REACHED  b" in done.out
    assert "d1" in done.out
    nodes = Done(str(fleet.cluster()), "--backport", "v0.5.20", "--node", "c")
    assert nodes.code == 2
    assert "one of a, b" in nodes.err


@pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin") is None, reason="no sshd here")
def test_over_ssh_it_is_the_same(fleet: Fleet, tmp_path: Path) -> None:
    stock = contents(fleet.own)
    (tmp_path / "sshd").mkdir()
    with sshd(tmp_path / "sshd") as server:
        node = _node(server)
        file = str(
            fleet.cluster(second=f"{{transport: ssh, host: node, config: {node}, python: {sys.executable}}}")
        )
        done = Done(file, "--backport", "v0.5.20", "--apply", "--yes", "--no-exercise")
        assert done.code == 0, done.out + done.err
        assert contents(fleet.own) == contents(fleet.shared)
        verified = Done(file, "--verify", "--no-exercise")
        assert (verified.code, verified.out.count("NOT RESTARTED")) == (12, 2)
        assert Done(file, "--rollback", "--yes").code == 0
    assert contents(fleet.own) == stock


def _node(server: Sshd) -> Path:
    server.transport()
    return server.config
