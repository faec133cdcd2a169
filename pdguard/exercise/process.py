"""One engine's interpreter, set apart: process group, scrubbed environment, scratch folder, time limit."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pdguard.errors import PdguardError
from pdguard.exercise import bundle
from pdguard.exercise.model import Engine

FLAGS = ("-I", "-B", "-u")
_MAX_LINE = 4 * 1024 * 1024
_MAX_ERRORS = 64 * 1024
_GRACE = 2.0
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
_CORE = "scheduler"
_CPU = "SGLANG_USE_CPU_ENGINE"
_OF_THE_ENGINE = {
    _CPU: "1",
    "SGLANG_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
}


class ExerciseError(PdguardError):
    """The engine's interpreter could not be started, or stopped talking sense."""


class EngineProcess:
    """An interpreter with the engine imported. Use it as a context manager: what it started ends with it."""

    def __init__(self, python: str, engine_path: str | None, deadline: float) -> None:
        self.python, self.engine_path, self.deadline = python, engine_path, deadline
        self.engine = Engine(python, engine_path)
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._errors = bytearray()
        self._scratch = Path(tempfile.mkdtemp(prefix="pdguard-exercise-"))
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EngineProcess:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_what: object) -> None:
        self.close()

    def _start(self) -> None:
        """Import the engine as on a machine without accelerator; where that fails, as it goes by itself."""
        self._launch(_OF_THE_ENGINE)
        if self.engine.root and _CORE in self.engine.missing:
            self._end()
            self._launch({name: value for name, value in _OF_THE_ENGINE.items() if name != _CPU})

    def _launch(self, variables: Mapping[str, str]) -> None:
        script = self._scratch / "pdguard_exercise.py"
        script.write_bytes(bundle.script())
        try:
            self._child = subprocess.Popen(
                [self.python, *FLAGS, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment(self._scratch), **variables},
                cwd=self._scratch,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ExerciseError(
                "the engine's interpreter could not be started",
                expected=f"a Python with the engine's packages at {self.python}",
                found=type(error).__name__,
            ) from error
        self._lines, self._errors = queue.Queue(), bytearray()
        for read, stream, into in (
            (_read_lines, self._child.stdout, self._lines),
            (_read_errors, self._child.stderr, self._errors),
        ):
            threading.Thread(target=read, args=(stream, into), daemon=True).start()
        self.write({"engine_path": self.engine_path})
        ready = self.read(self.deadline)
        if not isinstance(found := ready.get("ready"), dict):
            raise self.nonsense()
        self.engine = Engine(
            python=self.python,
            path=self.engine_path,
            version=str(found.get("version")),
            root=str(found.get("root")),
            missing={str(key): str(why) for key, why in dict(found.get("missing", {})).items()},
            stand_ins=tuple(map(str, found.get("stand_ins", ()))),
        )

    def write(self, what: Mapping[str, Any]) -> None:
        """One command."""
        if self._child is None or self._child.stdin is None:
            raise ExerciseError("the engine's interpreter is not running")
        try:
            self._child.stdin.write(json.dumps(what).encode("ascii") + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise self.died() from error

    def read(self, deadline: float) -> dict[str, Any]:
        """The next line."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise ExerciseError(
                "the engine's interpreter did not answer", expected="an answer in time", found="none"
            ) from None
        if line is None:
            raise self.died()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self.nonsense()
        return answer

    def died(self) -> ExerciseError:
        """The interpreter is gone; with the class of the last exception, whose text may quote anything."""
        how = "nothing is known of its end"
        if self._child is not None and (seen := _end_of(self._child.pid)) is not None:
            how = f"{'exit' if seen.si_code == os.CLD_EXITED else 'signal'} {seen.si_status}"
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        word = lines[-1].partition(":")[0].strip() if lines else ""
        named = f", {word}" if word.replace(".", "_").isidentifier() and len(word) < 80 else ""
        return ExerciseError(
            "the engine's interpreter ended early", expected="a result", found=f"{how}{named}"
        )

    def nonsense(self) -> ExerciseError:
        """What came is not what our script sends."""
        return ExerciseError(
            "the engine's interpreter makes no sense", expected="lines of JSON", found="others"
        )

    def run(
        self, name: str, arguments: Mapping[str, Any], variables: Mapping[str, str], limit: float
    ) -> dict[str, Any]:
        """Run one exercise; its result, also where it did not come to its end."""
        self.write({"run": name, "arguments": arguments, "environment": variables, "limit": limit})
        answer = self.read(time.monotonic() + limit + 5)
        if not isinstance(result := answer.get("result"), dict):
            raise self.nonsense()
        return result

    def _end(self) -> None:
        """End the whole group. It was never reaped before, so its id is still its own."""
        child, self._child = self._child, None
        if child is None:
            return
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                _close(stream)

    def close(self) -> None:
        """End everything that was started and remove the scratch folder."""
        self._end()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _end_of(pid: int) -> os.waitid_result | None:
    """How a child ended: looked at, not reaped, so that its id stays its own until `close`.

    A process closes its pipes a moment before its end can be seen, so this waits for that moment.
    """
    deadline = time.monotonic() + _GRACE
    while (seen := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    return seen


def _read_lines(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    with contextlib.suppress(ValueError):  # closed under us
        while line := stream.readline(_MAX_LINE):
            lines.put(line)
    lines.put(None)


def _read_errors(stream: IO[bytes], errors: bytearray) -> None:
    with contextlib.suppress(ValueError):
        while part := stream.readline(_MAX_ERRORS):
            errors += part
            del errors[:-_MAX_ERRORS]


def _close(stream: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def environment(scratch: Path) -> dict[str, str]:
    """Nothing of ours but where to find programs and libraries; every cache goes to the scratch folder."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    places = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME")
    return {"PATH": os.defpath, **kept, **dict.fromkeys(places, str(scratch))}
