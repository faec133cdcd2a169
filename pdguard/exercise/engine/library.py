"""The transfer libraries as switchboards: a write stays in flight, settles or fails as the exercise says."""

# ruff: noqa: D102 - the public methods of the engines are the libraries' own

from __future__ import annotations

import sys
import threading
import types
from typing import Any

from pdguard.exercise.engine import boot

_PATIENCE = 60.0


class Writes:
    """All writes of a process. `mode` holds for the writes that start from now on."""

    def __init__(self) -> None:
        self.mode = "pass"  # pass | hold | fail
        self.started = 0
        self.calls: list[list[int]] = []
        self._idle = threading.Event()
        self._idle.set()

    def set(self, mode: str) -> None:
        """Choose what becomes of the next writes, and let those in flight settle unless `hold`."""
        self.mode = mode
        if mode == "hold":
            self._idle.clear()
        else:
            self._idle.set()

    def begin(self, lengths: list[int]) -> str:
        """A write starts; what becomes of it."""
        self.started += 1
        self.calls.append(lengths)
        return self.mode

    @property
    def settled(self) -> bool:
        """Whether nothing is held in flight."""
        return self._idle.is_set()

    def wait(self, timeout: float = _PATIENCE) -> bool:
        """Wait until nothing is held in flight."""
        return self._idle.wait(timeout)


class MooncakeEngine:
    """Mooncake's engine: synchronous batches that return 0, or -1 when they failed."""

    def __init__(self, writes: Writes, session: str) -> None:
        self._writes, self._session = writes, session

    def get_session_id(self) -> str:
        return self._session

    def batch_transfer_sync(self, _session: str, _sources: Any, _targets: Any, lengths: Any) -> int:
        if self._writes.begin([int(length) for length in lengths]) == "fail":
            return -1
        self._writes.wait()
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: 0


class NixlAgent:
    """NIXL's agent: posted handles whose state is asked for. A failing one refuses the post."""

    shared = Writes()
    """Taken by the agents made from now on."""

    def __init__(self, name: str, *_config: Any) -> None:
        self.name = name
        self.writes = self.shared

    def get_agent_metadata(self) -> bytes:
        return self.name.encode("ascii")

    def add_remote_agent(self, metadata: bytes) -> str:
        return bytes(metadata).decode("ascii")

    def get_plugin_list(self) -> list[str]:
        return ["UCX"]

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {}

    def transfer(self, _handle: Any) -> str:
        return "ERR" if self.writes.begin([]) == "fail" else "PROC"

    def check_xfer_state(self, _handle: Any) -> str:
        return "DONE" if self.writes.settled else "PROC"

    def check_remote_metadata(self, *_arguments: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: object()


class _Status:
    """One MORI write."""

    def __init__(self, writes: Writes) -> None:
        self._writes, self._failed = writes, writes.begin([]) == "fail"

    def InProgress(self) -> bool:
        return not self._failed and not self._writes.settled

    def Failed(self) -> bool:
        return self._failed

    def Message(self) -> str:
        return "failed by the exercise"

    def Wait(self) -> None:
        self._writes.wait()


class _Blob:
    """A MORI description: packs to its text."""

    port = 1

    def __init__(self, text: str) -> None:
        self.text = self.key = text

    def pack(self) -> bytes:
        return self.text.encode("ascii")

    @classmethod
    def unpack(cls, data: bytes) -> _Blob:
        return cls(bytes(data).decode("ascii"))


class _Codes:
    SUCCESS, IN_PROGRESS, FAILED = "success", "in progress", "failed"


class MoriEngine:
    """MORI's engine: writes with a status each."""

    shared = Writes()
    """Taken by the engines made from now on."""

    def __init__(self, key: str, *_config: Any) -> None:
        self.key = key
        self.writes = self.shared

    def get_engine_desc(self) -> _Blob:
        return _Blob(self.key)

    def register_memory(self, *_arguments: Any) -> _Blob:
        return _Blob("memory")

    def batch_write(self, *arguments: Any) -> list[_Status]:
        return [_Status(self.writes) for _ in (arguments[0] if arguments else [0])]

    def wait_all(self, statuses: list[_Status], timeout_ms: int = 0) -> str:
        if any(status.Failed() for status in statuses):
            return _Codes.FAILED
        self.writes.wait(min(timeout_ms, 50) / 1000)
        return _Codes.IN_PROGRESS if any(status.InProgress() for status in statuses) else _Codes.SUCCESS

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: 0


def install(backend: str, writes: Writes, session: str) -> None:
    """Put the switchboard in the place of the backend's library; managers made from now on get it."""
    boot.note(f"transfer library of {backend}: a switchboard in memory, no byte is moved")
    if backend == "mooncake":
        engine = MooncakeEngine(writes, session)
        boot.part("mooncake").get_mooncake_transfer_engine = lambda: engine
    elif backend == "ascend":
        boot.part("ascend").AscendTransferEngine = lambda **_named: MooncakeEngine(writes, session)
    elif backend == "nixl":
        NixlAgent.shared = writes
        interface: Any = types.ModuleType("nixl._api")
        interface.nixl_agent = NixlAgent
        interface.nixl_agent_config = lambda *_arguments, **_named: None
        interface.nixl_thread_sync_t = types.SimpleNamespace(NIXL_THREAD_SYNC_STRICT=0)
        sys.modules["nixl"] = types.ModuleType("nixl")
        sys.modules["nixl._api"] = interface
    elif backend == "mori":
        MoriEngine.shared = writes
        module = boot.part("mori")
        module.IOEngine = MoriEngine
        module.StatusCode = _Codes
        module.EngineDesc = module.MemoryDesc = _Blob
        for name in ("IOEngineConfig", "RdmaBackendConfig"):
            setattr(module, name, lambda *_arguments, **_named: None)
        for name in ("BackendType", "MemoryLocationType", "PollCqMode"):
            setattr(module, name, _Names())
    else:
        raise boot.Unavailable(f"no switchboard for {backend}")


class _Names:
    """An enumeration with every member."""

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(name=name, value=name)
