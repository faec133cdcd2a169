"""One engine's interpreter, set apart: process group, scrubbed environment, scratch folder, time limit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from pdguard.errors import PdguardError, TransportError
from pdguard.exercise import bundle
from pdguard.exercise.engine.room import KEPT, environment
from pdguard.exercise.model import Engine
from pdguard.exercise.talk import Talk
from pdguard.transport.interface import PYTHON_FLAGS, Starter
from pdguard.transport.local import LocalTransport

__all__ = ["EngineProcess", "ExerciseError", "environment"]

FLAGS = ("-I", "-B", "-u")
LIFETIME = 7200.0
"""Seconds after which an interpreter ends whose caller went away without the connection showing it."""

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

    def __init__(
        self, python: str, engine_path: str | None, deadline: float, transport: Starter | None = None
    ) -> None:
        self.python, self.engine_path, self.deadline = python, engine_path, deadline
        self.engine = Engine(python, engine_path)
        self._transport = LocalTransport() if transport is None else transport
        self._talk: Talk | None = None

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
            self.close()
            self._launch({name: value for name, value in _OF_THE_ENGINE.items() if name != _CPU})

    def _launch(self, variables: Mapping[str, str]) -> None:
        request = {"seconds": LIFETIME, "arguments": [*FLAGS, "-c", bundle.FETCH], "variables": variables}
        try:
            started = self._transport.start([self.python, *PYTHON_FLAGS, "-c", bundle.ENTER], {}, KEPT)
        except TransportError as error:
            raise ExerciseError(
                "the engine's interpreter could not be started",
                expected=f"a Python with the engine's packages at {self.python}",
                found=error.found,
                todo=error.todo,
            ) from error
        self._talk = Talk(started)
        self._talk.write(bundle.room(json.dumps(request).encode("ascii")))
        self._talk.write(bundle.sized(bundle.script()))
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
        if self._talk is None:
            raise ExerciseError("the engine's interpreter is not running")
        if self._talk.closed:
            raise self.died()
        self._talk.write(json.dumps(what).encode("ascii") + b"\n")

    def read(self, deadline: float) -> dict[str, Any]:
        """The next line."""
        if self._talk is None:
            raise ExerciseError("the engine's interpreter is not running")
        try:
            line = self._talk.read(deadline)
        except TimeoutError:
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
        how, lines = "nothing is known of its end", []
        if self._talk is not None:
            if (problem := self._talk.problem()) is not None:
                return ExerciseError(
                    problem.what, expected=problem.expected, found=problem.found, todo=problem.todo
                )
            if (seen := self._talk.how_it_ended()) is not None:
                how = f"{'exit' if seen.si_code == os.CLD_EXITED else 'signal'} {seen.si_status}"
            lines = self._talk.errors.decode("utf-8", "replace").strip().splitlines()
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

    def close(self) -> None:
        """End everything that was started; its scratch folder goes with it."""
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.end()
