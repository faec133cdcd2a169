"""Prefill's side of a handoff: manager, sender and bootstrap server of the engine."""

from __future__ import annotations

import importlib
import inspect
import time
from typing import Any

from pdguard.exercise.engine import boot, library, stand, wires

PREFILL_HOST = "10.77.0.1"
BOOTSTRAP = f"{PREFILL_HOST}:8998"
_CLASSES = {"mooncake": "Mooncake", "nixl": "Nixl", "mori": "Mori", "ascend": "Ascend"}
_TOKENS = 4
_PATIENCE = 8.0


def kv_class(backend: str, what: str) -> Any:
    """KVManager, KVSender, KVReceiver or KVBootstrapServer of a backend."""
    return boot.member(backend, f"{_CLASSES[backend]}{what}")


def arguments(rank: int) -> Any:
    """KV arguments of one layer of a latent-attention model: 64 pages of 64 bytes in real memory."""
    numpy: Any = importlib.import_module("numpy")
    kind = boot.member("base", "KVArgs")
    made = kind()
    for name, annotation in inspect.get_annotations(kind).items():
        text = str(annotation)
        if "Optional" in text:
            value: Any = None
        elif "List" in text or "list" in text:
            value = []
        else:
            value = {"bool": False, "str": ""}.get(getattr(annotation, "__name__", text), 0)
        setattr(made, name, value)
    memory = numpy.zeros(64 * 64, dtype=numpy.uint8)
    extra = numpy.zeros(64 * 64, dtype=numpy.uint8)
    made.pdguard_memory = (memory, extra)
    made.kv_data_ptrs, made.kv_data_lens, made.kv_item_lens = [memory.ctypes.data], [memory.nbytes], [64]
    made.aux_data_ptrs, made.aux_data_lens, made.aux_item_lens = [extra.ctypes.data], [extra.nbytes], [64]
    made.engine_rank, made.page_size, made.kv_cache_dtype_str = rank, 1, "auto"
    made.kv_head_num = made.total_kv_head_num = 1
    made.prefill_end_layer = 1
    return made


def manager(backend: str, mode: str, host: str, rank: int, ranks: int, session: str, writes: Any) -> Any:
    """A manager of the engine, made by its own `__init__`, at an address of its own."""
    namespace = stand.configure(
        disaggregation_mode=mode, attn_tp_size=ranks, tp_size=ranks, attn_tp_rank=rank, tp_rank=rank
    )
    stand.replace_everywhere({"get_local_ip_auto": lambda *_arguments, **_named: host})
    library.install(backend, writes, session)
    modes = boot.member("utils", "DisaggregationMode")
    kind = kv_class(backend, "KVManager")
    offered = {
        "args": arguments(rank),
        "disaggregation_mode": modes.PREFILL if mode == "prefill" else modes.DECODE,
        "server_args": namespace,
        "is_mla_backend": True,
    }
    return kind(**stand.accepted(kind, offered))


class Prefill:
    """Prefill's side, one rank."""

    def __init__(self, backend: str) -> None:
        self.writes = library.Writes()
        self._backend = backend
        self.bootstrap = wires.Bootstrap(kv_class(backend, "KVBootstrapServer"))
        self._senders: dict[int, Any] = {}
        self._manager: Any = None

    def start(self) -> None:
        """Make the manager; it registers itself with its bootstrap server."""
        self._manager = manager(self._backend, "prefill", PREFILL_HOST, 0, 1, "prefill:17000", self.writes)

    @property
    def manager(self) -> Any:
        """The engine's manager, for exercises that get in its way."""
        return self._manager

    @property
    def backend(self) -> str:
        """The transfer backend, by the engine's name for it."""
        return self._backend

    def notes(self) -> list[str]:
        """What is not real in this process."""
        return list(boot.stand_ins)

    def adopt(self, room: int, sender: Any) -> None:
        """Take over a sender that the engine's own queue has made."""
        self._senders[room] = sender
        sender.init(_TOKENS, 0)

    def knows(self, room: int) -> bool:
        """Whether the room has a sender that was not given up yet."""
        return room in self._senders

    def sender(self, room: int) -> Any:
        """The sender of a room."""
        return self._senders[room]

    def open(self, room: int) -> None:
        """A request waits for decode's destination."""
        kind = kv_class(self._backend, "KVSender")
        offered = {
            "mgr": self._manager,
            "bootstrap_addr": BOOTSTRAP,
            "bootstrap_room": room,
            "dest_tp_ranks": [0],
            "pp_rank": 0,
        }
        self._senders[room] = sender = kind(**stand.accepted(kind, offered))
        sender.init(_TOKENS, 0)

    def ready(self, room: int) -> bool:
        """Whether decode's destination has come."""
        waiting = boot.member("base", "KVPoll").WaitingForInput
        return until(lambda: self._manager.request_status.get(room) == waiting)

    def send(self, room: int) -> bool:
        """Send everything; whether a write has started."""
        numpy: Any = importlib.import_module("numpy")
        before = self.writes.started
        self._senders[room].send(numpy.arange(_TOKENS, dtype=numpy.int32))
        return until(lambda: self.writes.started > before)

    def set_writes(self, mode: str) -> None:
        """pass, hold or fail; what is in flight settles unless hold."""
        self.writes.set(mode)

    def cancel(self, room: int) -> None:
        """Prefill's own scheduler gives up the request and clears it."""
        self._senders[room].abort()
        self.clear(room)
        del self._senders[room]

    def clear(self, room: int) -> None:
        """What the scheduler does with a failed sender: raise its reason, and with that forget the room."""
        try:
            self._senders[room].failure_exception()
        except Exception as error:  # noqa: BLE001 - the engine reports the reason by raising it
            self.reason = str(error)

    def failed(self, room: int) -> bool:
        """Whether the room has failed on this side, or is forgotten."""
        gone = (None, boot.member("base", "KVPoll").Failed)
        return until(lambda: self._manager.request_status.get(room) in gone)


def until(condition: Any, patience: float = _PATIENCE) -> bool:
    """Wait until something has come about; False where it does not in time."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True
