"""What reading the sources of a fleet costs: 1,000 nodes with three distinct trees against one. Never gates.

The node's own code runs in this process against trees out of real wheels; its time is counted apart from the
control side's. Every request and answer is JSON on its way, and its bytes are counted.
"""

from __future__ import annotations

import functools
import json
import resource
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pdguard._bundle import bundled
from pdguard.facts._sources import Sources
from pdguard.facts.interface import FactSet
from pdguard.facts.process import Found, collect_processes
from pdguard.facts.source import apply_source
from pdguard.fingerprint.contents import ContentStore
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.node.bundle import script
from pdguard.node.main import answer
from pdguard.transport.interface import Json
from pdguard.transport.local import LocalTransport
from tests.node.package_tree import SITE, Machine
from tests.wheels import wheel

pytestmark = [pytest.mark.bench, pytest.mark.wheels]
VERSIONS = ("0.5.19", "0.5.20", "0.5.23")
NODES = 1000
SERVER = """
import socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
sys.stdout.write("up\\n"); sys.stdout.flush()
time.sleep(120)
"""


@dataclass
class Counting:
    """A transport that runs the node's code on a fake machine, and counts its time and bytes."""

    machine: Machine
    name: str = "counting"
    cpu: float = 0.0
    calls: int = 0
    sizes: list[int] = field(default_factory=list)

    def run_script(self, source: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        line = json.dumps(request)
        begun = time.process_time()
        told = json.dumps(answer({**json.loads(line), "proc": str(self.machine.tree.path)}))
        self.cpu += time.process_time() - begun
        self.calls += 1
        self.sizes += [len(line), len(told)]
        back: Json = json.loads(told)
        return back


def machines(folder: Path) -> list[Machine]:
    made = []
    for version in VERSIONS:
        machine = Machine(folder / version)
        with zipfile.ZipFile(wheel(version)) as archive:
            names = [n for n in archive.namelist() if n.endswith((".py", "RECORD", "METADATA"))]
            archive.extractall(machine.root / SITE[1:], names)
        machine.start()
        made.append(machine)
    return made


@dataclass
class Cost:
    """CPU seconds of the control side and of all nodes, bytes each way, and what was found."""

    control: float
    node: float
    calls: int
    sizes: int
    states: dict[str, int]


def judge(nodes: Sequence[Machine], matcher: Matcher) -> Cost:
    """What an audit does: one round trip a node, each content once, every fix for every engine."""
    sources = Sources(ContentStore(), matcher)
    transports = {f"n{i}": Counting(machine) for i, machine in enumerate(nodes)}
    begun = time.process_time()
    found: list[tuple[str, Found]] = []
    for name, transport in transports.items():
        request: dict[str, Json] = {"engines": [{"name": "e", "port": 30000}], **sources.request()}
        found.append((name, collect_processes(transport, request, 60).engines["e"]))
    sources.fetch(found, lambda name: transports[name], 60)
    states: dict[str, int] = {}
    for _, one in found:
        facts = FactSet()
        apply_source(facts, one.source)
        for finding in matcher.find(sources.reader(one.source)):
            states[finding.state] = states.get(finding.state, 0) + 1
    total = time.process_time() - begun
    node = sum(t.cpu for t in transports.values())
    calls = sum(t.calls for t in transports.values())
    return Cost(total - node, node, calls, sum(sum(t.sizes) for t in transports.values()), states)


def test_cost(tmp_path: Path) -> None:
    made = machines(tmp_path)

    def matcher() -> Matcher:
        return Matcher(load_fixes(bundled("remediations")))

    watched = matcher().watched()
    judge(made[:1], matcher())  # warms the page cache and the imports
    print(
        f"\n{len(matcher().fixes)} fixes, {len(watched)} watched files, script {len(script())} bytes a call"
    )
    alone = [judge([machine], matcher()) for machine in made]
    for version, cost in zip(VERSIONS, alone, strict=True):
        print(
            f"  one node, {version}: control {cost.control:.3f} s, node {cost.node:.3f} s,"
            f" {cost.calls} calls, {cost.sizes / 1000:.0f} KB of requests and answers"
        )
    three = judge(made, matcher())
    many = judge([made[i % 3] for i in range(NODES)], matcher())
    further = NODES - 3
    print(
        f"  {NODES} nodes, 3 trees: control {many.control:.2f} s, all nodes {many.node:.1f} s,"
        f" {many.calls} calls; states {many.states}\n"
        f"  per distinct tree: control {three.control / 3:.3f} s CPU\n"
        f"  per further node: control {(many.control - three.control) / further * 1000:.2f} ms,"
        f" node {(many.node - three.node) / further * 1000:.0f} ms,"
        f" {(many.sizes - three.sizes) / further / 1000:.1f} KB besides the script"
    )
    assert many.calls - NODES <= 3 * 4


def test_real_process(tmp_path: Path) -> None:
    """The whole script in a Python of its own, against a process of this machine."""
    made = machines(tmp_path)[1]
    port = _free()
    package = made.root / SITE[1:] / "sglang"
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(SERVER)
    args = [sys.executable, "-m", "sglang.launch_server", "--port", str(port)]
    env = {"PYTHONPATH": str(package.parent), "PATH": "/usr/bin:/bin"}
    child = subprocess.Popen(args, cwd=tmp_path, env=env, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        asks: tuple[tuple[str, Mapping[str, Json]], ...] = (
            ("process only", {}),
            ("with sources", Sources(ContentStore(), Matcher(load_fixes(bundled("remediations")))).request()),
        )
        for name, request in asks:
            cpu, wall = _measure(functools.partial(_ask, port, request))
            print(f"\n  the script in its own Python, {name}: {cpu * 1000:.0f} ms CPU, {wall * 1000:.0f} ms")
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _ask(port: int, more: Mapping[str, Json]) -> None:
    request: dict[str, Json] = {"engines": [{"name": "e", "port": port, "host": "127.0.0.1"}], **more}
    LocalTransport().run_script(script(), request, 60)


def _measure(run: Callable[[], None]) -> tuple[float, float]:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before, begun = spent(), time.monotonic()
    for _ in range(5):
        run()
    return (spent() - before) / 5, (time.monotonic() - begun) / 5


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
