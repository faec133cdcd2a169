"""The ssh transport against a real sshd of this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pdguard.cluster.loader import load_cluster
from pdguard.errors import TransportError
from pdguard.facts.collect import collect
from pdguard.facts.interface import Subject
from pdguard.transport.factory import open_transport
from pdguard.transport.ssh import SshTransport
from tests.node.test_real import SERVER, running
from tests.node.tree import HOLD
from tests.transport.sshd import Sshd, free_port, new_key, public, sshd

ECHO = b"import json,sys;sys.stdout.write(json.dumps({'got':json.loads(REQUEST)}))"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running_one:
        yield running_one


@pytest.fixture
def node(server: Sshd) -> Sshd:
    """The module's sshd, trusted and with its right key, whatever the test before did to its client side."""
    server.know(public(server.host_key))
    server.more.clear()
    return server


def ask(transport: SshTransport, script: bytes = ECHO, timeout: float = 20) -> object:
    return transport.run_script(script, {"a": "ü\n'\"$x`"}, timeout)


def refused(transport: SshTransport, script: bytes = ECHO, timeout: float = 20) -> TransportError:
    with pytest.raises(TransportError) as caught:
        ask(transport, script, timeout)
    return caught.value


def alive(word: str) -> list[str]:
    """Processes with `word` on their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if word.encode() in line and folder.name != str(os.getpid()):
            found.append(folder.name)
    return found


def gone(word: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while alive(word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_one_request_one_answer(node: Sshd) -> None:
    assert ask(node.transport(sys.executable)) == {"got": {"a": "ü\n'\"$x`"}}


def test_user_and_port_of_the_node(node: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    entry = node.entry("*").replace(f"Port {node.port}", "Port 1").replace(f"User {node.user}", "User nobody")
    config.write_text(entry)
    transport = SshTransport("127.0.0.1", node.user, node.port, str(config), sys.executable)
    assert ask(transport) == {"got": {"a": "ü\n'\"$x`"}}


def test_large_request_and_large_answer(node: Sshd) -> None:
    script = b"import sys\nsys.stdout.write('\"' + 'x' * 3000000 + '\"')\n" + b"# fill\n" * 100000
    request = {"fill": "y" * 2_000_000}
    assert node.transport(sys.executable).run_script(script, request, 60) == "x" * 3000000


def test_the_script_is_isolated(node: Sshd) -> None:
    script = (
        b"import json,os,sys;print(json.dumps([sys.flags.isolated,sys.flags.no_site,sorted(os.environ)]))"
    )
    answer = ask(node.transport(sys.executable), script)
    assert isinstance(answer, list)
    assert answer[:2] == [1, 1]
    assert set(answer[2]) <= {"PATH", "LANG", "LC_CTYPE"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (b"import sys;sys.exit(3)", "found 3"),
        (b"raise KeyError('sk-secret')", "found 1 (KeyError)"),
        (b"print('hello')", "expected JSON"),
        (b"import sys\nwhile 1: sys.stdout.write('x'*65536)", "at most"),
        (b"import os,signal;os.kill(os.getpid(),signal.SIGKILL)", "broke, or the command there was killed"),
    ],
)
def test_faults_of_the_script_are_told(node: Sshd, script: bytes, words: str) -> None:
    error = refused(node.transport(sys.executable), script)
    assert words in str(error)
    assert "sk-secret" not in str(error)


def test_an_unknown_host_key_is_refused(node: Sshd) -> None:
    node.know(public(new_key(node.folder / f"other-{time.monotonic_ns()}")).replace("ssh-ed25519", "# "))
    error = refused(node.transport(sys.executable))
    assert error.what == "ssh: the host key of the node, or of a jump host, is not known"
    assert f"ssh -F {node.config} node true" in error.todo
    assert node.known_hosts.read_text().count("ssh-ed25519") == 0  # and it was not added


def test_a_changed_host_key_is_refused(node: Sshd) -> None:
    node.know(public(new_key(node.folder / f"changed-{time.monotonic_ns()}")))
    assert "is not the one that is known" in refused(node.transport(sys.executable)).what


def test_a_wrong_key_is_refused_without_a_prompt(node: Sshd, tmp_path: Path) -> None:
    transport = node.transport(sys.executable)
    text = node.config.read_text().replace(str(node.user_key), str(new_key(tmp_path / "wrong")))
    node.config.write_text(text)
    assert refused(transport).what == "ssh: permission denied"


def test_a_key_with_a_passphrase_does_not_ask(node: Sshd, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    transport = node.transport(sys.executable)
    node.config.write_text(node.config.read_text().replace(str(node.user_key), str(key)))
    begun = time.monotonic()
    assert refused(transport).what == "ssh: permission denied"
    assert time.monotonic() - begun < 10


def test_a_jump_host_of_the_configuration(node: Sshd, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump") as jump:
        node.more.append("ProxyJump node1")
        assert ask(node.transport(sys.executable, jump)) == {"got": {"a": "ü\n'\"$x`"}}
        assert "Accepted publickey" in jump.log()
        jump.know(public(new_key(tmp_path / "other")))
        assert "jump host, is not the one that is known" in refused(node.transport(sys.executable, jump)).what


def test_a_jump_host_that_lets_nothing_through(node: Sshd, tmp_path: Path) -> None:
    with sshd(tmp_path / "jump", "AllowTcpForwarding no") as jump:
        node.more.append("ProxyJump node1")
        assert "does not let through" in refused(node.transport(sys.executable, jump)).what


def test_what_an_operator_configures_does_not_get_in_the_way(node: Sshd) -> None:
    """Another command, a terminal, forwardings whose port is taken, silence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node.more += ["RemoteCommand tmux attach", "RequestTTY force", "LogLevel QUIET", "ForwardX11 yes"]
        node.more += [f"LocalForward {taken.getsockname()[1]} 127.0.0.1:1", "ExitOnForwardFailure yes"]
        assert ask(node.transport(sys.executable)) == {"got": {"a": "ü\n'\"$x`"}}
        node.know(public(new_key(node.folder / f"quiet-{time.monotonic_ns()}")))
        assert "is not the one that is known" in refused(node.transport(sys.executable)).what


def test_a_shared_connection_that_stays_open_is_not_waited_for(node: Sshd, tmp_path: Path) -> None:
    socket_path = Path("/tmp") / f"pdg-{os.getpid()}-{time.monotonic_ns()}"  # must be short
    node.more += ["ControlMaster auto", f"ControlPath {socket_path}", "ControlPersist 60"]
    transport = node.transport(sys.executable)
    begun = time.monotonic()
    try:
        for _ in range(2):
            assert ask(transport) == {"got": {"a": "ü\n'\"$x`"}}
        assert time.monotonic() - begun < 10
        assert socket_path.exists()
    finally:
        subprocess.run(["ssh", "-F", str(node.config), "-O", "exit", "node"], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("python", "files", "found"),
    [
        ("/nowhere/bin/python3", {}, "/nowhere/bin/python3 is not one"),
        (None, {}, "none of python3, "),
        (None, {"python3": "exit 1", "python": "exec nothing"}, "none of python3, "),
    ],
)
def test_no_python_that_fits(tmp_path: Path, python: str | None, files: dict[str, str], found: str) -> None:
    with only_these(tmp_path, files) as node:
        error = refused(node.transport(python))
    assert error.what == "the node has no Python that fits"
    assert error.found.startswith(found)
    assert "python:" in error.todo


def test_the_first_python_that_fits_is_taken(tmp_path: Path) -> None:
    files = {"python3": "exit 1", "python3.11": f'exec {sys.executable} "$@"', "python": "exit 1"}
    with only_these(tmp_path, files) as node:
        assert ask(node.transport()) == {"got": {"a": "ü\n'\"$x`"}}


def only_these(folder: Path, files: dict[str, str]) -> AbstractContextManager[Sshd]:
    """An sshd whose sessions find `files`, sh and env on their PATH, and nothing else."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(shutil.which(name) or "")
    for name, body in files.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    body = f'PATH={programs}; export PATH; exec {shutil.which("sh")} -c "$SSH_ORIGINAL_COMMAND"'
    return sshd(folder / "sshd", forced(folder, body))


def forced(folder: Path, body: str) -> str:
    """A line of sshd's configuration: run `body` instead of what was asked for."""
    script = folder / "forced"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return f"ForceCommand {script}"


def test_what_a_login_shell_prints_is_not_the_answer(tmp_path: Path) -> None:
    banner = (
        'echo Welcome to node 7; printf \'{"no": "line end"}\'; echo sk-secret >&2;'
        ' exec sh -c "$SSH_ORIGINAL_COMMAND"'
    )
    with sshd(tmp_path / "sshd", forced(tmp_path, banner)) as node:
        transport = node.transport(sys.executable)
        assert ask(transport) == {"got": {"a": "ü\n'\"$x`"}}
        assert "sk-secret" not in str(refused(transport, b"import sys;sys.exit(3)"))
        assert "no Python that fits" in str(refused(node.transport("/nowhere/python")))


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "tcsh", "ksh"])
def test_any_login_shell_will_do(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    body = f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"'
    with sshd(tmp_path / "sshd", forced(tmp_path, body)) as node:
        assert ask(node.transport(sys.executable)) == {"got": {"a": "ü\n'\"$x`"}}


@pytest.mark.parametrize("body", ["echo This account is for files only; exit 0", "cat", "exit 1"])
def test_a_shell_that_runs_something_else_is_told(tmp_path: Path, body: str) -> None:
    with sshd(tmp_path / "sshd", forced(tmp_path, body)) as node:
        error = refused(node.transport(sys.executable), timeout=4)
    assert error.what in ("ssh: the node did not run the command", "the node script did not finish")
    assert "files only" not in str(error)


def test_a_closed_port() -> None:
    error = refused(SshTransport("127.0.0.1", None, free_port(), "/dev/null"))
    assert error.what == "ssh: connection refused"


def test_a_name_that_does_not_resolve() -> None:
    error = refused(SshTransport("no-such-host.invalid", config="/dev/null"))
    assert error.what == "ssh: the host name does not resolve"


def test_a_server_that_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        error = refused(SshTransport("127.0.0.1", None, silent.getsockname()[1], "/dev/null"), timeout=3)
        assert time.monotonic() - begun < 6
    assert error.what == "ssh: the node did not answer in time"


def test_a_server_that_hangs_up() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-c", "import socket,sys;s=socket.socket(fileno=0);s.accept()[0].close()"],
        stdin=server.fileno(),
    )
    server.close()
    try:
        assert refused(SshTransport("127.0.0.1", None, port, "/dev/null")).what.startswith(
            "ssh: the connection was closed"
        )
    finally:
        child.terminate()
        child.wait(10)


def test_a_configuration_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Port high\nsk-secret yes\n")
    for name in ("config", "missing"):
        error = refused(SshTransport("node", config=str(tmp_path / name)))
        assert error.what == "ssh: the client's configuration cannot be used"
        assert "sk-secret" not in str(error)


def test_no_client(node: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = node.transport(sys.executable)
    monkeypatch.setenv("PATH", str(node.folder))
    assert refused(transport).what == "ssh could not be started"


@pytest.mark.parametrize("host", ["-oProxyCommand=touch {}", "-F{}", "x -oProxyCommand=touch {}"])
def test_a_host_is_never_an_option(host: str, tmp_path: Path) -> None:
    """The cluster file refuses such names; the transport does not rest on that."""
    made = tmp_path / "made"
    refused(SshTransport(host.format(made), config="/dev/null"), timeout=5)
    refused(SshTransport("127.0.0.1", host.format(made), 1, config="/dev/null"), timeout=5)
    assert not made.exists()


def test_names_are_never_commands_over_there(node: Sshd, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for evil in (f"$(touch {made})", f"'; touch {made}; '", f"`touch {made}`", f"a\ntouch {made}\n"):
        assert "no Python that fits" in str(refused(node.transport(evil)))
        started = node.transport().start(["echo", evil], {"X": evil})
        output, _ = started.child.communicate(b"", 20)
        assert output.partition(started.begin)[2] == evil.encode() + b"\n"
    assert not made.exists()


def test_environment_of_a_command(node: Sshd) -> None:
    started = node.transport().start(["env"], {"A": "1 2", "B": ""}, ["PATH", "NOT_THERE"])
    output, _ = started.child.communicate(b"", 20)
    lines = output.partition(started.begin)[2].decode().splitlines()
    assert {line.partition("=")[0] for line in lines} == {"PATH", "A", "B"}
    assert {"A=1 2", "B="} < set(lines)
    with pytest.raises(ValueError, match="names"):
        node.transport().start(["env"], {"A;B": "1"})


def test_timeout_ends_everything(node: Sshd) -> None:
    word = f"pdguard-test-{time.monotonic_ns()}"
    script = (
        "import subprocess,sys,time\n"
        f"subprocess.Popen([sys.executable,'-c','import time;time.sleep(60)',{word!r}])\n"
        "time.sleep(60)\n"
    ).encode()
    begun = time.monotonic()
    assert refused(node.transport(sys.executable), script, 3).what == "the node script did not finish"
    assert time.monotonic() - begun < 8
    assert gone(word)  # over there too
    assert not alive(str(node.config))  # no ssh is left


def test_no_file_handle_is_left(node: Sshd) -> None:
    transport = node.transport(sys.executable)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ask(transport)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_audit_reads_engines_over_ssh_and_a_lost_node_costs_its_own(node: Sshd, tmp_path: Path) -> None:
    package = tmp_path / "engine"
    (package / "sglang").mkdir(parents=True)
    (package / "sglang" / "__init__.py").write_text("")
    (package / "sglang" / "launch_server.py").write_text(SERVER)
    port, closed = free_port(), free_port()
    node.transport()
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh" / "config").write_text(node.config.read_text())
    (tmp_path / "cluster.yaml").write_text(
        f"""
cluster: test
engines:
  - {{name: p0, role: prefill, url: "http://127.0.0.1:{port}", node: near}}
  - {{name: d0, role: decode, url: "http://127.0.0.1:{closed}", node: lost}}
nodes:
  near: {{transport: ssh, host: node, config: ssh/config, python: {sys.executable}}}
  lost: {{transport: ssh, host: 127.0.0.1, port: {closed}, config: ssh/config}}
policy: {{request_timeout: 0.5, run_timeout: 30}}
"""
    )
    cluster = load_cluster(tmp_path / "cluster.yaml")
    args = [sys.executable, "-m", "sglang.launch_server", "--port", str(port), "--api-key", "sk-1"]
    with running(args, package, {HOLD: "on", "SECRET": "sk-2"}) as child:
        found = collect(cluster, {})
    p0, d0 = found.engines
    near, lost = found.nodes
    assert p0.facts.integer("pid") == child.pid
    assert p0.facts.text("hold_raw") == "on"
    assert p0.facts.text("source_root_kind") is not None
    assert (near.facts.flag("reachable"), lost.facts.flag("reachable")) == (True, False)
    assert why(d0, "hold_raw") == "ssh: connection refused"
    assert near.facts.items("engines_lost") == ()
    assert "sk-" not in repr(found)


def why(subject: Subject, name: str) -> str:
    missing = subject.facts.why_missing(name)
    assert missing is not None
    return missing.reason


def test_the_factory_places_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        """
cluster: test
engines: [{name: p0, role: prefill, url: "http://a", node: n}]
nodes: {n: {transport: ssh, host: gpu-01, user: ops, port: 2222, config: ssh/config, python: ~/v/bin/python}}
"""
    )
    cluster = load_cluster(tmp_path / "cluster.yaml")
    opened = open_transport(cluster.nodes["n"], cluster.base_dir)
    config = str(tmp_path / "ssh" / "config")
    assert opened == SshTransport("gpu-01", "ops", 2222, config, "~/v/bin/python")
