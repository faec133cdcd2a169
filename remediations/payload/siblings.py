"""Fix X8: a failed send of one layer is not reported while another layer is still written.

What is reported as failed may be acknowledged, and its pages given away on both sides. Mooncake's own paths
wait for the rest; Ascend's left it running.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from typing import Any

from .state import holds


def settled(manager: Any, layers: Sequence[Future[Any]]) -> Any:
    """The first status that is not 0, once no layer is written any more; the first error is raised then.

    Layers that have not begun are called off. Without a hold nobody waits for the end of a write, and the
    first failure is reported at once, as ever.
    """
    status: Any = 0
    error: BaseException | None = None
    for layer in as_completed(layers):
        if layer.cancelled():
            continue
        trouble = layer.exception()
        found = 0 if trouble is not None else layer.result()
        if (trouble is None and found == 0) or error is not None or status != 0:
            continue
        status, error = found, trouble
        for other in layers:
            other.cancel()
        if not holds(manager):
            break
    if error is not None:
        raise error
    return status
