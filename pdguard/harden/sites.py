"""Where the engine packages are: one that is named, or all that the engines of a cluster file import."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pdguard.cluster.model import Cluster, Engine
from pdguard.errors import InputError, TransportError
from pdguard.harden import agent
from pdguard.harden.results import Outcome, Site
from pdguard.transport.factory import open_transport
from pdguard.transport.interface import Json, NodeTransport
from pdguard.transport.local import LocalTransport


@dataclass(frozen=True, slots=True)
class Sites:
    """Packages that can be worked on, how each is reached, and what could not be found."""

    sites: tuple[Site, ...]
    transports: Mapping[str, NodeTransport]
    lost: tuple[Outcome, ...] = ()


def of_target(path: Path, python: str | None) -> Sites:
    """The package at `path`, or in the folder that it names, on this machine.

    Without `python` the interpreter of a virtual environment that the package lies in is taken. Raises
    InputError where there is no such folder.
    """
    if not path.exists():
        raise InputError(
            "there is no such target", expected="an sglang package or its folder", found=str(path)
        )
    root = path.absolute()
    package = root if root.name == "sglang" else _below(root)
    return Sites((Site("", str(package), (), python or _interpreter(package)),), {"": LocalTransport()})


def _below(folder: Path) -> Path:
    """The one package below a folder: in it, or where installers put it in an unpacked image."""
    if (folder / "sglang" / "srt").is_dir():
        return folder / "sglang"
    patterns = ("*/site-packages/sglang", "*/*/site-packages/sglang", "*/*/*/*-packages/sglang")
    deep = ("*/*/*/*/*-packages/sglang", "*/*/*/*/*/*-packages/sglang", "*/python/sglang")
    found = {
        p.resolve() for pattern in (*patterns, *deep) for p in folder.glob(pattern) if (p / "srt").is_dir()
    }
    if len(found) > 1:
        raise InputError(
            f"{folder} holds several packages",
            expected="one, or its own path",
            found=", ".join(sorted(map(str, found))[:4]),
        )
    return found.pop() if found else folder


def _interpreter(package: Path) -> str | None:
    """The Python of the virtual environment around a package, or None."""
    for above in package.parents:
        if (above / "pyvenv.cfg").is_file():
            python = above / "bin" / "python"
            return str(python) if python.exists() else None
    return None


def of_cluster(
    cluster: Cluster, only: Collection[str], python: str | None, say: Callable[[str], None]
) -> Sites:
    """Every package that an engine of `cluster` imports, on the nodes in `only` (all where it is empty).

    Raises InputError for a node that is none, or where no engine is on a node that pdguard could read.
    """
    unknown = sorted(set(only) - set(cluster.nodes))
    if unknown:
        known = ", ".join(cluster.nodes) or "none"
        raise InputError("no such node", expected=f"one of {known}", found=", ".join(unknown))
    on_nodes: dict[str, list[Engine]] = {}
    for engine in cluster.engines:
        for node in engine.all_nodes:
            if not only or node in only:
                on_nodes.setdefault(node, []).append(engine)
    if not on_nodes:
        raise InputError(
            "no engine of the cluster file is on a node that it names",
            expected="`node:` of an engine, and `nodes:`",
            todo="Name them, or use --target on the node itself",
        )
    sites: list[Site] = []
    lost: list[Outcome] = []
    transports: dict[str, NodeTransport] = {}
    for node, engines in on_nodes.items():
        say(f"looking for the packages of {len(engines)} engines on {node}")
        transports[node] = open_transport(cluster.nodes[node], cluster.base_dir)
        here, gone = _on_node(node, engines, transports[node], python)
        sites += here
        lost += gone
    return Sites(tuple(sites), transports, tuple(lost))


def _on_node(
    node: str, engines: list[Engine], transport: NodeTransport, python: str | None
) -> tuple[list[Site], list[Outcome]]:
    asked: list[Mapping[str, Json]] = []
    for engine in engines:
        url = urlsplit(str(engine.url))
        port = url.port or (443 if url.scheme == "https" else 80)
        leader: dict[str, Json] = {"name": engine.name, "port": port, "host": url.hostname or ""}
        asked.append(leader if engine.node == node else {"name": engine.name, "follower": True})
    try:
        rows = agent.find(transport, asked)
    except TransportError as error:
        site = Site(node, "", tuple(e.name for e in engines))
        return [], [Outcome(site, "not reached", str(error))]
    by_root: dict[tuple[str, str], list[str]] = {}
    lost = []
    for row in rows:
        if row.status == "found" and row.root:
            by_root.setdefault((row.root, python or row.python), []).append(row.name)
        else:
            why = f"{row.why or row.status}. A package whose engine does not run: --target, on that node"
            lost.append(Outcome(Site(node, "", (row.name,)), "not reached", why))
    return [Site(node, root, tuple(names), py or None) for (root, py), names in by_root.items()], lost
