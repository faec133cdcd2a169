"""Makes the engine's interpreter quiet and harmless before anything of the engine is imported.

Three things: nothing but our own lines reaches standard output, an audit hook refuses the network and any
change below the engine's folder, and what the machine lacks (kernels, libraries) is stood in for, by name.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
from typing import Any

REPLACEABLE = {
    "sgl_kernel": "_cpu",
    "sgl_kernel.mamba": "_cpu",
    "mori": "",
    "mori.io": "",
    "mori.cpp": "",
}
"""Modules that an import may miss here, and how the names end that the engine takes from them. A placeholder
stands in if, and only if, they are absent. (Off the GPU the engine imports CPU kernels and calls none.)"""

_NEW_NETWORK = 0x40000000
_VISION_OPS = ("nms", "qnms")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
)
_CALLS = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")
_NAMES = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")

stand_ins: list[str] = []
"""What was replaced in this process, in plain words; part of every report."""


def note(what: str) -> None:
    """Add to `stand_ins`, once."""
    if what not in stand_ins:
        stand_ins.append(what)


def private_output() -> int:
    """A descriptor for our own lines; whatever the engine prints goes to standard error from now on."""
    mine = os.dup(1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    return mine


def leave_the_network() -> None:
    """Move to a network namespace without a device, where this process may; the hook holds in any case."""
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is not None and unshare(_NEW_NETWORK) == 0:
        note("network namespace: its own, without a device")


def fence(root: str | None) -> None:
    """Refuse the network, and any change below `root`, for the rest of this process and its children."""
    top = os.path.realpath(root) + os.sep if root else None

    def below(path: object) -> bool:
        if top is None or not isinstance(path, (str, bytes)):
            return False
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(top)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and below(path):
                raise PermissionError("an exercise must not write below the engine's folder")
        elif event in _CALLS:
            if not isinstance(arguments[1], (str, bytes)):
                raise PermissionError("an exercise has no network")
        elif event in _NAMES:
            raise OSError("an exercise has no network")
        elif event in _CHANGES and any(below(argument) for argument in arguments):
            raise PermissionError("an exercise must not change the engine's folder")

    sys.addaudithook(hook)


class _Placeholder:
    """Takes the place of a class of an absent package. Only its name is ever needed."""

    def __init__(self, *_arguments: object, **_named: object) -> None:
        raise NotImplementedError("this package is not installed here")


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not name.endswith(REPLACEABLE[self.__name__]):
            raise AttributeError(name)
        return type(name, (_Placeholder,), {})


class _LastResort(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on `sys.meta_path`, so it is asked only for what nothing else has."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in REPLACEABLE:
            return None
        note(f"package {name.partition('.')[0]} is absent: placeholder")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class _VisionSchemas(importlib.abc.MetaPathFinder):
    """A torchvision built for another torch registers no operators, and trips over that on import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name != "torchvision._meta_registrations":
            return
        torch: Any = importlib.import_module("torch")
        for op in _VISION_OPS:
            if not hasattr(torch.ops.torchvision, op):
                torch.library.define(
                    f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
                note(f"operator torchvision::{op} is absent: declared without a body")


def stand_in_for_the_missing() -> None:
    """From now on imports that would fail for want of a named package or operator get a placeholder."""
    sys.meta_path.insert(0, _VisionSchemas())
    sys.meta_path.append(_LastResort())


MODULES = {
    "schedule_batch": "sglang.srt.managers.schedule_batch",
    "scheduler": "sglang.srt.managers.scheduler",
    "sampling": "sglang.srt.sampling.sampling_params",
    "context": "sglang.srt.runtime_context",
    "server_args": "sglang.srt.server_args",
    "utils": "sglang.srt.disaggregation.utils",
    "base": "sglang.srt.disaggregation.base.conn",
    "common": "sglang.srt.disaggregation.common.conn",
    "fake": "sglang.srt.disaggregation.fake.conn",
    "prefill": "sglang.srt.disaggregation.prefill",
    "decode": "sglang.srt.disaggregation.decode",
    "hicache": "sglang.srt.disaggregation.decode_hicache_mixin",
    "offload": "sglang.srt.disaggregation.decode_kvcache_offload_manager",
    "unified": "sglang.srt.mem_cache.unified_radix_cache",
    "mooncake": "sglang.srt.disaggregation.mooncake.conn",
    "nixl": "sglang.srt.disaggregation.nixl.conn",
    "mori": "sglang.srt.disaggregation.mori.conn",
    "ascend": "sglang.srt.disaggregation.ascend.conn",
}

_loaded: dict[str, Any] = {}
failures: dict[str, str] = {}


class Unavailable(Exception):
    """The engine has no such part, or it cannot be imported here; the text says why."""


def load() -> None:
    """Import every part once; a part that fails is kept with its reason."""
    for key, name in MODULES.items():
        try:
            _loaded[key] = importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - an engine may even exit when imported
            failures[key] = f"{type(error).__name__}: {error}"[:300]


def part(key: str) -> Any:
    """The module, or Unavailable."""
    if key in _loaded:
        return _loaded[key]
    raise Unavailable(f"{MODULES[key]} cannot be imported: {failures.get(key, 'not tried')}")


def member(key: str, name: str) -> Any:
    """A name of a module of the engine, or Unavailable."""
    try:
        return getattr(part(key), name)
    except AttributeError:
        raise Unavailable(f"{MODULES[key]} has no {name}") from None
