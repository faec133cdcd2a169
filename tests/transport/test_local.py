from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdguard.errors import TransportError
from pdguard.transport.factory import open_transport
from pdguard.transport.interface import Transport
from pdguard.transport.local import LocalTransport


@dataclass
class Node:
    transport: str
    python: str | None = None


def run(code: str, timeout: float = 20, request: dict[str, str] | None = None) -> object:
    return LocalTransport().run_script(code.encode(), request or {}, timeout)


def test_one_request_one_answer() -> None:
    code = "import json,sys;sys.stdout.write(json.dumps({'got':json.loads(REQUEST)}))"
    assert run(code, request={"a": "ü\n"}) == {"got": {"a": "ü\n"}}


def test_large_script_and_answer() -> None:
    code = "import sys;sys.stdout.write('\"'+'x'*3000000+'\"')\n" + "# fill\n" * 200000
    assert run(code) == "x" * 3000000


def test_the_child_is_isolated() -> None:
    code = (
        "import json,os,sys;"
        "sys.stdout.write(json.dumps([sys.flags.isolated,sys.dont_write_bytecode,sorted(os.environ)]))"
    )
    answer = run(code)
    assert isinstance(answer, list)
    assert answer[:2] == [1, True]
    assert set(answer[2]) <= {"PATH", "LANG", "LC_CTYPE"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys;sys.exit(3)", "found 3"),
        ("raise KeyError('sk-secret')", "found 1 (KeyError)"),
        ("print('hello')", "expected JSON"),
        ("", "expected JSON"),
        ("import sys;sys.stdout.write('['*100000)", "expected JSON"),
        ("import sys;sys.stdout.buffer.write(b'\\xff\\xfe')", "expected JSON"),
        ("import sys\nwhile 1: sys.stdout.write('x'*65536)", "at most"),
        ("import os,signal;os.kill(os.getpid(),signal.SIGKILL)", "found -9"),
    ],
)
def test_faults_are_told(code: str, words: str) -> None:
    with pytest.raises(TransportError) as caught:
        run(code)
    assert words in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_noise_on_stderr_is_harmless() -> None:
    assert run("import sys;sys.stderr.write('x'*1000000);sys.stdout.write('1')") == 1


def test_no_python(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="could not be started"):
        LocalTransport(str(tmp_path / "python")).run_script(b"", {}, 5)


def test_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess,sys,time\n"
        f"child=subprocess.Popen([{sys.executable!r},'-c','import time;time.sleep(60)'])\n"
        f"open({str(note)!r},'w').write(str(child.pid))\ntime.sleep(60)\n"
    )
    begin = time.monotonic()
    with pytest.raises(TransportError, match="did not finish"):
        run(code, timeout=2)
    assert time.monotonic() - begin < 10
    pid = int(note.read_text())
    for _ in range(50):
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        if not state.stdout.strip() or state.stdout.startswith("Z"):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the grandchild lives on")


def test_timeout_with_an_orphan_that_keeps_the_pipe() -> None:
    sleeper = [sys.executable, "-c", "import time;time.sleep(60)"]
    code = f"import os,subprocess\nsubprocess.Popen({sleeper!r})\nos._exit(0)"
    with pytest.raises(TransportError, match="did not finish"):
        run(code, timeout=2)


def test_no_file_handle_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run("import sys;sys.stdout.write('1')")
    assert len(os.listdir("/proc/self/fd")) == before


def test_factory() -> None:
    assert open_transport(Node("local")) == LocalTransport(sys.executable)
    assert open_transport(Node("local", "/usr/bin/python3")) == LocalTransport("/usr/bin/python3")
    with pytest.raises(TransportError, match="unknown transport"):
        open_transport(Node("telnet"))


@pytest.mark.parametrize("word", ["kubectl", "docker"])
def test_laid_transports_say_what_to_do(word: str) -> None:
    transport: Transport = open_transport(Node(word))
    assert transport.name == word
    with pytest.raises(TransportError) as caught:
        transport.run_script(b"", {}, 1)
    assert caught.value.found == f"transport: {word}"
    assert "SGLANG_EXPOSE_OWN_ENV_VARS=1" in caught.value.todo
    assert "transport: local" in caught.value.todo
