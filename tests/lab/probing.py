"""`pdguard probe` on a running deployment, and its answers by what was asked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lab import Lab

PREFILL_ONLY, DECODE_ONLY, BOTH = "only prefill rejects", "only decode rejects", "both reject"
DOOR, WAITED, HELD, LATE = "rejected at the door", "waited for the timeout", "still held", "rejected late"
WALKED, EXPOSED, ADMITTED = "walked on", "exposed", "admitted"
INDEPENDENT = "nothing to compare"
_TIMEOUT = 500


@dataclass(frozen=True)
class Probed:
    """What the command gave: its document, its exit code, and everything it printed."""

    document: dict[str, Any]
    code: int
    printed: str

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The results of one kind, each with the step it belongs to."""
        steps = {step["number"]: step for step in self.document["plan"]["steps"]}
        return [
            {**result, "planned": steps.get(result["step"], {})}
            for result in self.document["results"]
            if result["kind"] == kind
        ]

    def over_pool(self, side: str, *, routed: bool = False, stream: bool = False) -> dict[str, str]:
        """Verdicts on prompts of one side: of the whole step, and of each half (or of the router)."""
        found = [
            result
            for result in self.of_kind("over-pool")
            if result["planned"]["length"]["side"] == side
            and result["planned"]["stream"] is stream
            and (result["planned"]["subject"] == "router") is routed
        ]
        (result,) = found
        return {"all": result["verdict"], **{half["role"]: half["verdict"] for half in result["halves"]}}

    def measures(self, kind: str) -> list[dict[str, Any]]:
        """The figures of each result of one kind."""
        return [{m["name"]: m["value"] for m in result["measures"]} for result in self.of_kind(kind)]


def probe(lab: Lab, folder: Path, *options: str) -> Probed:
    """Run the command as an operator would, with consent, and read what it wrote."""
    file = lab.write_cluster_yaml(folder)
    out = folder / "probe.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pdguard", "probe", str(file), "--yes", "--format", "json"]
    done = subprocess.run(
        [*command, "-o", str(out), *options], capture_output=True, text=True, check=False, timeout=_TIMEOUT
    )
    assert out.exists(), done.stderr
    return Probed(json.loads(out.read_text("utf-8")), done.returncode, done.stdout + done.stderr)
