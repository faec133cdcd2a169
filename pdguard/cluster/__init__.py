"""The cluster file: its model, its loader, its JSON Schema, and the keys that it names."""

from pdguard.cluster.auth import AuthProblem, resolve_headers, resolve_key, resolve_path
from pdguard.cluster.loader import DEFAULT_FILE, load_cluster, parse_cluster
from pdguard.cluster.model import (
    Auth,
    Cluster,
    Engine,
    Policy,
    Prometheus,
    Role,
    Router,
    RouterKind,
    Tls,
    Waiver,
)
from pdguard.cluster.nodes import DockerNode, KubectlNode, LocalNode, Node, SshNode
from pdguard.cluster.schema import SCHEMA_ID, cluster_schema

__all__ = [
    "DEFAULT_FILE",
    "SCHEMA_ID",
    "Auth",
    "AuthProblem",
    "Cluster",
    "DockerNode",
    "Engine",
    "KubectlNode",
    "LocalNode",
    "Node",
    "Policy",
    "Prometheus",
    "Role",
    "Router",
    "RouterKind",
    "SshNode",
    "Tls",
    "Waiver",
    "cluster_schema",
    "load_cluster",
    "parse_cluster",
    "resolve_headers",
    "resolve_key",
    "resolve_path",
]
