"""Opens the transport that a node of cluster.yaml names."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pdguard.errors import TransportError
from pdguard.transport.interface import NodeSpec, Transport
from pdguard.transport.local import LocalTransport
from pdguard.transport.remote import DockerTransport, KubectlTransport, SshTransport

_REMOTE: dict[str, Callable[[], Transport]] = {
    "ssh": SshTransport,
    "kubectl": KubectlTransport,
    "docker": DockerTransport,
}


def open_transport(node: NodeSpec) -> Transport:
    """The transport of `node`; nothing is run or reached before `run_script`."""
    if node.transport == "local":
        return LocalTransport(node.python or sys.executable)
    make = _REMOTE.get(node.transport)
    if make is None:
        raise TransportError(
            "unknown transport", expected="local, ssh, kubectl or docker", found=node.transport[:40]
        )
    return make()
