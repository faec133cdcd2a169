"""The deployments that tests of the audit and of the probe share, so that each is started once."""

from __future__ import annotations

from .spec import pair

INCIDENT = pair("0.5.20", (1024, 4096), router="sglang-router")
NEWER = pair("0.5.22", (1024, 4096), router="sglang-router")
SOUND = pair("0.5.23", (8192, 8192), router="smg", waiting_timeout=None)
