"""Transports that cluster.yaml may name and this version cannot use: each says so, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pdguard.errors import TransportError
from pdguard.transport.interface import Json

_SUPPORTED = "transport: local or transport: ssh"
_TODO = (
    "Run pdguard on that node with `transport: local`, reach the machine with `transport: ssh`, or start its"
    " engines with SGLANG_EXPOSE_OWN_ENV_VARS=1 (0.5.19 or newer) to read their variables over HTTP"
)


@dataclass(frozen=True, slots=True)
class _Laid:
    """Named, validated, not implemented."""

    name: str

    def run_script(self, script: bytes, request: Mapping[str, Json], timeout: float) -> NoReturn:
        """Raise the TransportError that says what this version can do."""
        self._refuse()

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], keep: Sequence[str] = ("PATH",)
    ) -> NoReturn:
        """Raise the TransportError that says what this version can do."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TransportError(
            "this version reads nodes with `transport: local` or `transport: ssh` only",
            expected=_SUPPORTED,
            found=f"transport: {self.name}",
            todo=_TODO,
        )


@dataclass(frozen=True, slots=True)
class KubectlTransport(_Laid):
    """The node is a pod."""

    name: str = "kubectl"


@dataclass(frozen=True, slots=True)
class DockerTransport(_Laid):
    """The node is a container of this machine."""

    name: str = "docker"
