"""What running engines really import: graded by source, and a file that is patched under them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from .cache import Cache
from .session import LabSession
from .spec import pair
from .test_audit_live import audit, failing

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
SPEC = pair("0.5.20", (1024, 4096))


def test_a_file_patched_under_running_engines(tmp_path: Path, lab_session: LabSession) -> None:
    root = Cache.default().engine_copy("0.5.20", tmp_path / "engine")
    lab = lab_session.get(replace(SPEC, engine_root=root))
    before, _ = audit(lab, tmp_path)
    p, d = lab.prefill.name, lab.decode.name
    rows = {e["name"]: e for e in before["engines"]}
    assert {"36988", "35049"} <= set(rows[p]["fixes_present"])
    assert {"38935", "43719"} <= set(rows[p]["fixes_absent"])
    assert rows[p]["fixes_unknown"] == rows[d]["source_disagrees"] == []
    late = next(f for f in before["findings"] if f["check"] == "PDG207" and f["target"] == p)
    assert (late["status"], late["grade"]) == ("fail", "fingerprinted")
    assert any(e["ref"].startswith("38935 srt/disaggregation/prefill.py:") for e in late["evidence"])
    assert not {c for c, _ in failing(before)} & {"PDG616", "PDG617", "PDG618", "PDG619"}

    exercised, _ = audit(lab, tmp_path, "--exercise")
    late = next(f for f in exercised["findings"] if f["check"] == "PDG207" and f["target"] == p)
    assert (late["status"], late["grade"]) == ("fail", "exercised")
    row = next(e for e in exercised["engines"] if e["name"] == d)
    assert row["reject_fate"] == "is retired late"
    assert row["ack_kept"] is row["ack_every_rank"] is False
    assert row["hold_scope"] == "decode aborts"

    inspected = subprocess.run(
        [sys.executable, "-m", "pdguard", "inspect", str(lab.prefill.server.pid), "-f", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    states = {f["id"]: f["state"] for f in json.loads(inspected.stdout)["fixes"]}
    assert states["36988"] == "present"
    assert states["38935"] == "absent"

    file = root / "sglang" / "srt" / "disaggregation" / "prefill.py"
    file.write_text(file.read_text("utf-8") + "\n# a hand was here\n", "utf-8")
    after, _ = audit(lab, tmp_path)
    assert {("PDG617", p), ("PDG617", d)} <= failing(after)
    late = next(f for f in after["findings"] if f["check"] == "PDG207" and f["target"] == p)
    assert late["grade"] == "claimed"
    assert "fixes_present" not in next(e for e in after["engines"] if e["name"] == p)
