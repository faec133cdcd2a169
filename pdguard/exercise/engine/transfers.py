"""Single sends of Mooncake and Ascend: how much one call of the library carries, and what it leaves behind.

The managers are the engine's own, made by their own `__init__`; the library is a notebook, and the addresses
are made up. Nothing of Ascend's library is needed, and nothing is said about it.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pdguard.exercise.engine import boot, library, peers, situations, stand, wires

_CAP = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
_BUFFERS, _PAGE, _TOKEN = 4, 4, 16
_SPAN = 1 << 30
"""Bytes between two buffers: an address tells its buffer."""
_PAGES = (3, 4, 5, 9, 10, 11, 12, 20)
_TARGETS = (7, 8, 9, 10, 30, 31, 40, 41)
_FAILED = -7
_PATIENCE = 8.0

Block = tuple[int, int, int]


class Notebook:
    """Mooncake's engine: takes down each call. `answer` gives its status; what it waits for is unsettled."""

    def __init__(self, answer: Callable[[int, set[int]], int] = lambda _number, _buffers: 0) -> None:
        self.calls: list[list[Block]] = []
        self.running = 0
        self._answer = answer
        self._lock = threading.Lock()

    def batch_transfer_sync(self, _session: str, sources: Any, targets: Any, lengths: Any) -> int:
        """Take down one call."""
        blocks = [(int(a), int(b), int(size)) for a, b, size in zip(sources, targets, lengths, strict=True)]
        with self._lock:
            self.calls.append(blocks)
            number = len(self.calls)
            self.running += 1
        try:
            return self._answer(number, {source // _SPAN for source, _, _ in blocks})
        finally:
            with self._lock:
                self.running -= 1

    def items(self, size: int) -> list[int]:
        """For each call the most items of `size` bytes that it carries of one buffer."""
        most = []
        for blocks in self.calls:
            each: dict[int, int] = {}
            for source, _, length in blocks:
                each[source // _SPAN] = each.get(source // _SPAN, 0) + length
            most.append(max(each.values()) // size)
        return most

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Where every item of `size` bytes comes from and goes, over all calls."""
        return sorted(
            (source + at, target + at)
            for blocks in self.calls
            for source, target, length in blocks
            for at in range(0, length, size)
        )


def _manager(backend: str, hold: str = "default") -> Any:
    stand.switch(hold, situations.HOLD_SECONDS)
    bootstrap = wires.Bootstrap(peers.kv_class("mooncake", "KVBootstrapServer"))
    wires.lay(wires.Net(), bootstrap.web)
    made = peers.manager(backend, "prefill", peers.PREFILL_HOST, 0, 1, "prefill:17000", library.Writes())
    kv = made.kv_args
    kv.page_size = _PAGE
    kv.kv_data_ptrs = [(one + 1) * _SPAN for one in range(_BUFFERS)]
    kv.kv_item_lens = [_PAGE * _TOKEN] * _BUFFERS
    kv.kv_head_num = kv.total_kv_head_num = 2
    made.is_mla_backend = False
    return made


def _indices(values: Iterable[int]) -> Any:
    numpy: Any = importlib.import_module("numpy")
    return numpy.array(list(values), dtype=numpy.int32)


def _call(method: Any, executor: Any, **more: Any) -> Any:
    """A send of the same pages to the same buffers, with what the method takes of `more`."""
    offered = {
        "mooncake_session_id": "decode:17000",
        "prefill_kv_indices": _indices(_PAGES),
        "dst_kv_ptrs": [(one + 101) * _SPAN for one in range(_BUFFERS)],
        "dst_kv_indices": _indices(_TARGETS),
        "executor": executor,
        "dst_layer_ids": [],
        **more,
    }
    return method(**stand.accepted(method, offered))


def _whole(manager: Any, executor: Any) -> Any:
    return _call(manager.send_kvcache, executor)


def _slice(manager: Any, executor: Any) -> Any:
    """Prefill has one rank, decode two: the second takes the second half of every token."""
    width = {"dst_tp_rank": 1, "dst_attn_tp_size": 2, "dst_kv_item_len": _PAGE * _TOKEN // 2}
    return _call(manager.send_kvcache_slice, executor, **width)


def _dcp(manager: Any, executor: Any) -> Any:
    """Decode has two ranks of decode context parallelism: each takes every other token, or page."""
    more = {
        "dst_kv_indices": _indices(_TARGETS[: len(_TARGETS) // 2]),
        "dcp_token_item_lens": [_TOKEN] * _BUFFERS,
        "dst_dcp_size": 2,
        "dst_dcp_rank": 1,
        "src_page_offset": 0,
        "decode_prefix_len": 0,
        "num_kv_tokens": len(_PAGES) * _PAGE,
    }
    return _call(manager.send_kvcache_dcp, executor, **more)


def _by_pages(manager: Any, executor: Any) -> Any:
    """Ascend's own transfer to such ranks: whole pages, some buffers from one rank's pages, some from all."""
    manager.kv_args.kv_buf_groups, manager._dcp_remote_decode_layout = 3, [False, True, True, False]
    return _dcp(manager, executor)


Send = Callable[[Any, Any], Any]
_PATHS: dict[str, tuple[str, tuple[tuple[Send, bool, int, int], ...]]] = {
    "slice": ("mooncake", ((_slice, False, _TOKEN // 2, _PAGE),)),
    "layers": ("mooncake", ((_whole, True, _PAGE * _TOKEN, 1),)),
    "dcp": ("mooncake", ((_dcp, False, _TOKEN, _PAGE), (_dcp, True, _TOKEN, _PAGE))),
    "ascend": (
        "ascend",
        (
            (_whole, False, _PAGE * _TOKEN, 1),
            (_whole, True, _PAGE * _TOKEN, 1),
            (_by_pages, False, _PAGE * _TOKEN, 1),
        ),
    ),
}
"""Backend of a path, and its sends: with a custom memory pool or not, bytes of an item, items of a page."""


def batch_cap(path: str, limit: int) -> dict[str, Any]:
    """A limit on the pages of one call: is it kept, is the same written, and is a failed call the last?"""
    backend, sends = _PATHS[path]
    saw: dict[str, Any] = {}
    for send, pool, size, per_page in sends:
        if send is _by_pages and not hasattr(peers.kv_class(backend, "KVManager"), "_is_npu_dsa_layout"):
            continue
        free, _ = _sent(backend, send, pool, 0)
        book, status = _sent(backend, send, pool, limit)
        name = f"{send.__name__.strip('_')}{', custom pool' if pool else ''}"
        saw[name] = {"free": free.items(size), "capped": book.items(size)}
        longest = -(-max(book.items(size)) // per_page)
        if longest > limit:
            why = f"{name}: a call of {longest} pages, though the limit is {limit}"
            return {"outcome": "absent", "state": "fail", "why": why, "saw": saw}
        if status != 0 or book.pieces(size) != free.pieces(size):
            why = f"{name}: bounded calls write something else than the call that they stand for"
            return {"outcome": "other blocks", "state": "fail", "why": why, "saw": saw}
        if not _stops(backend, send, pool, limit):
            why = f"{name}: calls follow one that failed, or its status is lost"
            return {"outcome": "goes on", "state": "fail", "why": why, "saw": saw}
    why = f"no call is longer than {limit} pages, all pages are written, nothing follows a failed call"
    return {"outcome": "capped", "state": "pass", "why": why, "saw": saw}


def _sent(
    backend: str, send: Send, pool: bool, limit: int, book: Notebook | None = None
) -> tuple[Notebook, Any]:
    os.environ[_CAP] = str(limit)
    manager = _manager(backend)
    manager.enable_custom_mem_pool, manager.custom_mem_pool_type = pool, "NVLINK" if pool else None
    manager.engine = book = book or Notebook()
    with ThreadPoolExecutor(1) as executor:
        return book, send(manager, executor)


def _stops(backend: str, send: Send, pool: bool, limit: int) -> bool:
    """Whether nothing of a buffer is written after its call failed; the second call of all does."""
    failed: set[int] = set()
    after: list[int] = []

    def answer(number: int, buffers: set[int]) -> int:
        after.extend(failed & buffers)
        if number == 2:
            failed.update(buffers)
        return _FAILED if number == 2 else 0

    _, status = _sent(backend, send, pool, limit, Notebook(answer))
    return status == _FAILED and bool(failed) and not after


def siblings(backend: str) -> dict[str, Any]:
    """One layer fails while another is still written: is the send over before that one has settled?"""
    begun, settle = threading.Event(), threading.Event()

    def answer(_number: int, buffers: set[int]) -> int:
        if buffers == {1}:
            begun.wait(_PATIENCE)
            return _FAILED
        begun.set()
        settle.wait(_PATIENCE)
        return 0

    manager = _manager(backend, "on")
    manager.enable_custom_mem_pool, manager.custom_mem_pool_type = True, "NVLINK"
    manager.engine = book = Notebook(answer)
    ended: list[tuple[Any, int]] = []
    with ThreadPoolExecutor(2) as executor:
        sender = threading.Thread(target=lambda: ended.append((_whole(manager, executor), book.running)))
        sender.start()
        if not begun.wait(_PATIENCE):
            raise boot.Unavailable("no second layer was sent beside the first")
        sender.join(1.0)
        early = bool(ended)
        settle.set()
        sender.join(_PATIENCE)
    if not ended:
        return {"outcome": "stuck", "state": "fail", "why": "the send never came to an end"}
    status, running = ended[0]
    if early or running:
        why = f"reported as failed while {running} layers were still written"
        return {"outcome": "early", "state": "fail", "why": why}
    if status != _FAILED:
        return {"outcome": "lost", "state": "fail", "why": f"the status of the failed layer became {status}"}
    why = f"reported once nothing was written any more; {_BUFFERS - len(book.calls)} layers were called off"
    return {"outcome": "fixed", "state": "pass", "why": why}
