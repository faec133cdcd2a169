"""Engines of a few lines, all our own, for testing the runner where no torch and no SGLang is installed."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

PYTHON = sys.executable

_FILES = {
    "torch/__init__.py": "",
    "torch/distributed.py": "",
    "sglang/__init__.py": "__version__ = '0.0.0+fake'",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": """
        import dataclasses
        @dataclasses.dataclass
        class ServerArgs:
            page_size: int = 1
        """,
    "sglang/srt/runtime_context.py": "def get_parallel():\n    raise RuntimeError('not configured')",
    "sglang/srt/sampling/__init__.py": "",
    "sglang/srt/sampling/sampling_params.py": """
        class SamplingParams:
            def __init__(self, **named):
                self.named = named
        """,
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/managers/schedule_batch.py": """
        import types
        class Req:
            def __init__(self, rid, text, ids, sampling, **named):
                self.rid, self.ids, self.session, self.ending = rid, ids, None, None
                self.metadata_buffer_index, self.is_retracted = -1, False
                self.kv = types.SimpleNamespace(req_pool_idx=None)
            def set_finish_with_abort(self, why):
                self.ids, self.ending = [0], why
        """,
    "sglang/srt/managers/scheduler.py": """
        class Scheduler:
            def refuse(self, req):
                self.streamer.stream_output([req], False)
        """,
    "sglang/srt/disaggregation/__init__.py": "",
}

QUEUE = """
    def get_kv_class(*_):
        raise RuntimeError("to be replaced")
    class PrefillBootstrapQueue:
        def add(self, req, heads):
            {guard}
            req.sender = get_kv_class(1, 2)(mgr=None)
            self.queue.append(req)
    """

VULNERABLE = "pass"
FIXED = (
    "held = req.metadata_buffer_index >= 0 or req.is_retracted or req.kv.req_pool_idx is not None\n"
    "            if req.ending and not held: return self.scheduler.refuse(req)"
)
SILENT = "if req.ending: return"


def engine(folder: Path, guard: str = VULNERABLE, **files: str) -> str:
    """Write an engine whose prefill door runs `guard` first; `files` replace modules, dots for slashes."""
    wanted = {**_FILES, "sglang/srt/disaggregation/prefill.py": QUEUE.format(guard=guard)}
    wanted.update({name.replace("__", "/") + ".py": text for name, text in files.items()})
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(folder)
