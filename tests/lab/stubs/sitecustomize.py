"""Import hooks that let SGLang's PD code run without an accelerator. The engine's files stay as they are.

Python imports this module at start-up because the lab puts its folder on PYTHONPATH.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

VISION_OPS = ("nms", "qnms")


def declare_vision_ops() -> None:
    """The torchvision wheel of the index is built for CUDA: its operators never register beside a
    CPU torch, and its own metadata module trips over that. Declaring the two schemas is enough."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for op in VISION_OPS:
        if not hasattr(torch.ops.torchvision, op):
            torch.library.define(f"torchvision::{op}", schema)


def refuse_host_indices(module: ModuleType) -> None:
    """0.5.23's Mooncake sender offers to take page indices from pinned host memory, which needs CUDA.
    Without the offer the scheduler takes the branch that all earlier versions have."""
    for value in list(vars(module).values()):
        if isinstance(value, type) and getattr(value, "supports_host_tensor_indices", False):
            setattr(value, "supports_host_tensor_indices", False)  # noqa: B010


def register_dram(module: ModuleType) -> None:
    """SGLang registers its KV memory with NIXL as VRAM whatever the device, and UCX refuses host memory
    under that name. Every agent here takes the name to mean DRAM."""
    agent: Any = getattr(module, "nixl_agent")  # noqa: B009
    original = agent.__init__

    def init(self: Any, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        self.nixl_mems["VRAM"] = self.nixl_mems["DRAM"]

    agent.__init__ = init


def digest_on_host(module: ModuleType) -> None:
    """The engine's KV checksum runs a GPU kernel. This one walks the same pages in host memory, so that
    exchange, comparison and abort can be tested (not the kernel itself)."""
    import ctypes
    import zlib

    def compute(self: Any, kv_indices: Any, state_indices: Any = None) -> int:
        regions = [(*r, kv_indices) for r in zip(self._kv_data_ptrs, self._kv_item_lens, strict=True)]
        state = zip(self._state_data_ptrs, self._state_item_lens, strict=True)
        regions += [(*r, state_indices) for r in state]
        value = 1
        for base, size, indices in regions:
            for index in indices.tolist():
                value = zlib.adler32(ctypes.string_at(base + index * size, size), value)
        return value

    computer: Any = getattr(module, "KvChecksumComputer")  # noqa: B009
    computer.compute = compute


AFTER: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.disaggregation.mooncake.conn": refuse_host_indices,
    "sglang.srt.disaggregation.checksum": digest_on_host,
    "nixl_cu13._api": register_dram,
    "nixl_cu12._api": register_dram,
}
BEFORE: dict[str, Callable[[], None]] = {"torchvision._meta_registrations": declare_vision_ops}


class _Then(Loader):
    """Loads a module as usual, then lets a hook adjust it."""

    def __init__(self, inner: Loader, hook: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._hook(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Finder:
    """First on sys.meta_path; answers for the modules named above and for nothing else."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if before := BEFORE.pop(name, None):
            before()
            return None
        hook = AFTER.get(name)
        spec = PathFinder.find_spec(name, path, target) if hook else None
        if hook and spec and spec.loader:
            spec.loader = _Then(spec.loader, hook)
        return spec


sys.meta_path.insert(0, _Finder)
