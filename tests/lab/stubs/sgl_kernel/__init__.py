"""Stands in for SGLang's CPU kernel package, which no index carries.

In CPU mode the engine imports `*_cpu` names when its modules load, but calls none of them for a
plain dense model. So every such name exists here, and using one is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if not name.endswith("_cpu"):
        raise AttributeError(f"the lab's sgl_kernel has no {name!r}")

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"the lab's sgl_kernel cannot run {name}")

    absent.__name__ = name
    return absent
