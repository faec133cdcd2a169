"""Who may call what: the engine's own rules for API keys."""

from __future__ import annotations

from pdguard.simulator.messages import Answer, Request, json_answer
from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.versions import MUTATING, at_least

UNAUTHORIZED = json_answer(401, {"error": "Unauthorized"})
_OPEN = ("/health", "/metrics")


def refuse(spec: EngineSpec, request: Request) -> Answer | None:
    """The 401 for a request that lacks the right key, or None.

    Health and metrics are open, /ready too from 0.5.20 on. Ordinary paths need the API key if there is
    one; with an admin key alone they stay open. Paths that change the engine need the admin key if there
    is one (the API key is then refused), else the API key. Before 0.5.10 there is a single key.
    """
    if spec.api_key is None and spec.admin_api_key is None:
        return None
    if request.method == "OPTIONS" or request.path.startswith(_OPEN):
        return None
    if at_least(spec.version, "0.5.20") and request.path.startswith("/ready"):
        return None
    needed = spec.api_key
    if spec.admin_api_key is not None and request.path in MUTATING and at_least(spec.version, "0.5.10"):
        needed = spec.admin_api_key
    if needed is None:
        return None
    scheme, _, given = request.header(b"authorization").decode("latin-1").partition(" ")
    return None if scheme.lower() == "bearer" and given.strip() == needed else UNAUTHORIZED
