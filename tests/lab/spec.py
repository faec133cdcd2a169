"""What to run, as plain frozen values: hashable, so that a running lab can be reused by its spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

VERSIONS = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")

Role = Literal["prefill", "decode"]
Backend = Literal["mooncake", "nixl"]
RouterKind = Literal["sglang-router", "smg", "none"]

BASE_PORT = 21000
"""Below the ephemeral range, and clear of the 15000-17000 that Mooncake picks from."""


@dataclass(frozen=True)
class RoleSpec:
    """What one role gets on top of the common flags; `engine_root` wins over that of the deployment."""

    pool: int = 4096
    context: int = 4096
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    engine_root: Path | None = None


@dataclass(frozen=True)
class LabSpec:
    """One deployment: prefills, decodes, and a router or none.

    `waiting_timeout` sets both of SGLang's PD timeouts in seconds; None leaves the default (300).
    `engine_root` replaces the cached engine by another folder to import `sglang` from.
    """

    version: str = "0.5.22"
    prefill: RoleSpec = field(default_factory=RoleSpec)
    decode: RoleSpec = field(default_factory=RoleSpec)
    prefills: int = 1
    decodes: int = 1
    backend: Backend = "mooncake"
    router: RouterKind = "none"
    router_flags: tuple[str, ...] = ()
    waiting_timeout: float | None = 8
    engine_root: Path | None = None
    base_port: int = BASE_PORT
    start_timeout: float = 240

    def __post_init__(self) -> None:
        if not (1 <= self.prefills <= 9 and 1 <= self.decodes <= 9):
            raise ValueError("prefills and decodes must be between 1 and 9")
        if self.engine_root is None and self.version not in VERSIONS:
            raise ValueError(f"version {self.version!r} is not one of {', '.join(VERSIONS)}")

    @property
    def extra_sites(self) -> tuple[str, ...]:
        """Package folders that this spec needs beside the common virtual environment."""
        wanted = {"nixl": self.backend == "nixl", "smg": self.router == "smg"}
        return tuple(name for name, needed in wanted.items() if needed)

    def role(self, role: Role) -> RoleSpec:
        return self.prefill if role == "prefill" else self.decode

    def port(self, role: Role, index: int) -> int:
        return self.base_port + (10 if role == "prefill" else 20) + index

    def bootstrap_port(self, index: int) -> int:
        """Where prefill `index` answers the decodes' handshake."""
        return self.base_port + 30 + index

    @property
    def router_port(self) -> int:
        return self.base_port

    @property
    def highest_port(self) -> int:
        """No port of the deployment lies above it (nor above base + 99, where SGLang's own begin)."""
        return self.base_port + 40

    def title(self) -> str:
        """A short name for progress lines and test ids."""
        pools = f"{self.prefill.pool}/{self.decode.pool}"
        shape = f"{self.prefills}P{self.decodes}D"
        return f"{self.version} {shape} {self.backend} pools {pools} router {self.router}"


def pair(
    version: str,
    pools: tuple[int, int] = (4096, 4096),
    *,
    router: RouterKind = "none",
    backend: Backend = "mooncake",
    context: int = 4096,
    waiting_timeout: float | None = 8,
) -> LabSpec:
    """The usual case: one prefill, one decode, pools as (prefill, decode)."""
    return LabSpec(
        version=version,
        prefill=RoleSpec(pools[0], context),
        decode=RoleSpec(pools[1], context),
        backend=backend,
        router=router,
        waiting_timeout=waiting_timeout,
    )
