"""Opens the transport that a node of cluster.yaml names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pdguard.cluster.auth import resolve_path
from pdguard.cluster.nodes import SshNode
from pdguard.errors import TransportError
from pdguard.transport.interface import NodeSpec, NodeTransport
from pdguard.transport.local import LocalTransport
from pdguard.transport.remote import DockerTransport, KubectlTransport
from pdguard.transport.ssh import SshTransport

_LAID: dict[str, Callable[[], NodeTransport]] = {"kubectl": KubectlTransport, "docker": DockerTransport}


def open_transport(node: NodeSpec, base_dir: Path | None = None) -> NodeTransport:
    """The transport of `node`; nothing is run or reached before it is used.

    Relative paths of the node start at `base_dir`, the folder of the cluster file (or at the current one).
    """
    if node.transport == "local":
        return LocalTransport(node.python or sys.executable)
    if isinstance(node, SshNode):
        config = None if node.config is None else str(resolve_path(node.config, base_dir or Path()))
        return SshTransport(node.host, node.user, node.port, config, node.python)
    make = _LAID.get(node.transport)
    if make is None:
        raise TransportError(
            "unknown transport", expected="local, ssh, kubectl or docker", found=node.transport[:40]
        )
    return make()
