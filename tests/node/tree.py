"""A /proc of one's own, built in a folder."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdguard.node.main import answer

HOST_NET = "net:[4026531840]"
ANY = "0.0.0.0"  # noqa: S104


def hex_address(address: str, port: int) -> str:
    raw = ipaddress.ip_address(address).packed
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return f"{words.hex().upper()}:{port:04X}"


@dataclass
class Tree:
    path: Path
    sockets: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    members: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
        (self.path / "self" / "ns").mkdir(parents=True)
        (self.path / "self" / "ns" / "net").symlink_to(HOST_NET)

    def add(
        self,
        pid: int,
        ppid: int,
        argv: list[str] | bytes,
        env: dict[str, str] | bytes | None = None,
        net: str = HOST_NET,
        listens: list[tuple[str, int]] | None = None,
        root: Path | None = None,
        comm: str = "python3) R 1 (",
    ) -> None:
        base = self.path / str(pid)
        for part in ("ns", "fd", "net"):
            (base / part).mkdir(parents=True)
        (base / "stat").write_bytes(
            f"{pid} ({comm}) S {ppid} ".encode() + b"0 " * 17 + f"{pid * 100} 0 0\n".encode()
        )
        data = argv if isinstance(argv, bytes) else b"".join(a.encode() + b"\0" for a in argv)
        (base / "cmdline").write_bytes(data)
        if isinstance(env, dict):
            env = b"".join(f"{k}={v}".encode() + b"\0" for k, v in env.items())
        if env is not None:
            (base / "environ").write_bytes(env)
        (base / "ns" / "net").symlink_to(net)
        (base / "root").symlink_to(root or self.path / "no-root")
        (base / "cwd").symlink_to("/work")
        self.members.setdefault(net, []).append(pid)
        for address, port in listens or []:
            inode = 1000 + pid * 10 + len(list((base / "fd").iterdir()))
            (base / "fd" / str(inode)).symlink_to(f"socket:[{inode}]")
            self.sockets.setdefault(net, []).append((address, port, inode))
        self._tables()

    def share(self, pid: int, inode: int) -> None:
        (self.path / str(pid) / "fd" / str(inode)).symlink_to(f"socket:[{inode}]")

    def _tables(self) -> None:
        for net, pids in self.members.items():
            for name, version in (("tcp", 4), ("tcp6", 6)):
                lines = [
                    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when uid timeout inode"
                ]
                for i, (address, port, inode) in enumerate(self.sockets.get(net, [])):
                    if ipaddress.ip_address(address).version == version:
                        lines.append(
                            f"{i:4}: {hex_address(address, port)} 00000000:0000 0A 00000000:00000000"
                            f" 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0"
                        )
                for pid in pids:
                    (self.path / str(pid) / "net" / name).write_text("\n".join(lines) + "\n")

    def addresses(self, net: str, *addresses: str) -> None:
        text = "Local:\n" + "".join(f"        |-- {a}\n           /32 host LOCAL\n" for a in addresses)
        for pid in self.members[net]:
            (self.path / str(pid) / "net" / "fib_trie").write_text(text)

    def ask(
        self, engines: list[dict[str, Any]] | None = None, routers: list[dict[str, Any]] | None = None
    ) -> Any:
        return answer({"engines": engines or [], "routers": routers or [], "proc": str(self.path)})

    def engine(self, port: int = 30000, **more: Any) -> Any:
        return self.ask([{"name": "e", "port": port, **more}])["engines"][0]


LAUNCH = ["/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "m", "--port", "30000"]
HOLD = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"


def title(text: str) -> bytes:
    return text.encode() + b"\0" * 60


def engine_tree(path: Path, env: dict[str, str] | bytes | None = None, argv: list[str] | None = None) -> Tree:
    """init, a shell, the engine, its scheduler and detokenizer."""
    tree = Tree(path)
    tree.add(1, 0, ["/sbin/init"], {"PATH": "/bin"})
    tree.add(10, 1, ["bash", "run.sh"], {})
    tree.add(20, 10, argv or LAUNCH, {HOLD: "on"} if env is None else env, listens=[(ANY, 30000)])
    tree.add(21, 20, title("sglang::scheduler_TP0"), b"\0" * 300)
    tree.add(22, 20, title("sglang::detokenizer"), b"\0" * 300)
    return tree
