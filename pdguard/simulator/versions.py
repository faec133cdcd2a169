"""Which engine version has what: endpoints, auth, admission. One place for every comparison.

Read from the wheels of 0.4.10, 0.5.5, 0.5.10 and 0.5.18 to 0.5.23; a version in between behaves as the
newest one before it that is listed.
"""

from __future__ import annotations

import functools
import re

_KNOWN = ("0.4.10", "0.5.5", "0.5.10", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
_NUMBERS = re.compile(r"\d+")

#: Paths that change the engine when called, and so must never be called by a read-only tool.
MUTATING = frozenset(
    {
        "/flush_cache",
        "/abort_request",
        "/set_internal_state",
        "/pd_role_switch",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/start_profile",
        "/stop_profile",
        "/freeze_gc",
        "/slow_down",
        "/configure_logging",
    }
)


def known_versions() -> tuple[str, ...]:
    """Every version with answers of its own, oldest first."""
    return _KNOWN


@functools.cache
def parse(version: str) -> tuple[int, ...]:
    """A version as numbers: `0.5.21.post1` is (0, 5, 21, 1)."""
    return tuple(int(number) for number in _NUMBERS.findall(version))


def at_least(version: str, other: str) -> bool:
    """Whether `version` is `other` or newer."""
    return parse(version) >= parse(other)


@functools.cache
def data_version(version: str) -> str:
    """The known version whose answers `version` gives."""
    best = _KNOWN[0]
    for known in _KNOWN:
        if at_least(version, known):
            best = known
    return best


def hold_default(version: str) -> bool:
    """Whether the hold is on when nothing is set."""
    return at_least(version, "0.5.21")


@functools.cache
def get_paths(version: str) -> frozenset[str]:
    """Every GET path that the version serves, without /metrics (which depends on a flag)."""
    paths = {"/health", "/health_generate", "/get_server_info", "/get_model_info", "/v1/models", "/ping"}
    if at_least(version, "0.5.10"):
        paths |= {"/server_info", "/model_info", "/v1/loads"}
    if at_least(version, "0.5.20"):
        paths.add("/ready")
    if not at_least(version, "0.5.21"):
        paths.add("/get_load")
    if not at_least(version, "0.5.10"):
        paths.add("/get_weight_version")
    return frozenset(paths)


def intake(version: str) -> str:
    """What becomes of a request that the scheduler refuses: `stub`, `late` or `door`.

    `stub`: the prompt is replaced by one token and walks on through the handoff (0.5.5 to 0.5.19).
    `late`: it walks on, but its result is answered with the error (0.5.20).
    `door`: it is answered at once and nothing is created (0.5.21 and later; assumed for 0.4.10).
    """
    if at_least(version, "0.5.21") or not at_least(version, "0.5.5"):
        return "door"
    return "late" if at_least(version, "0.5.20") else "stub"
