"""From a listening port to the processes that hold it, in every network namespace."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Dict, List, NamedTuple, Set

from pdguard.node.procfs import Clock, Proc, link, read

TABLE_LIMIT = 16 * 1024 * 1024
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """A listening socket."""

    namespace: str
    address: str
    port: int
    inode: str
    uid: str
    sample: int


class Sockets(NamedTuple):
    """Listeners of a node, the pids behind each socket, and how many processes hide their namespace."""

    listeners: List[Listener]
    holders: Dict[str, Set[int]]
    hidden: int


def _address(text: str) -> str:
    """The address in a /proc/net/tcp column, which holds 32-bit words in host order."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return ""
    if len(raw) not in (4, 16):
        return ""
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    found = ipaddress.ip_address(words)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def parse_listeners(data: bytes, namespace: str, sample: int) -> List[Listener]:
    """Listening sockets of a /proc/net/tcp or tcp6 table; lines that make no sense are passed over."""
    found: List[Listener] = []
    for line in data.decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != "0A":
            continue
        host, _, port = words[1].rpartition(":")
        address = _address(host)
        if not address or not re.fullmatch("[0-9A-Fa-f]{1,4}", port) or not words[9].isdigit():
            continue
        found.append(Listener(namespace, address, int(port, 16), words[9], words[7], sample))
    return found


def survey(proc: str, procs: Dict[int, Proc], ports: Set[int], clock: Clock) -> Sockets:
    """Listeners on `ports` in all namespaces seen, and who holds them."""
    listeners: List[Listener] = []
    done: Set[str] = set()
    hidden = 0
    for pid in sorted(procs):
        if clock.over():
            break
        namespace = link("%s/%d/ns/net" % (proc, pid))
        if not namespace and procs[pid].cmdline and os.path.exists("%s/%d/stat" % (proc, pid)):
            hidden += 1  # still there, and not ours to look into
        if not namespace or namespace in done:
            continue
        tables = [read("%s/%d/net/%s" % (proc, pid, name), TABLE_LIMIT)[0] for name in ("tcp", "tcp6")]
        if tables[0] is None and tables[1] is None:
            continue  # another process of the same namespace may be readable
        done.add(namespace)
        for data in tables:
            found = parse_listeners(data or b"", namespace, pid)
            listeners.extend(entry for entry in found if entry.port in ports)
    holders = _holders(proc, procs, {entry.inode for entry in listeners}, clock)
    return Sockets(listeners, holders, hidden)


def _holders(proc: str, procs: Dict[int, Proc], inodes: Set[str], clock: Clock) -> Dict[str, Set[int]]:
    holders: Dict[str, Set[int]] = {}
    for pid in procs if inodes else ():
        if clock.over():
            break
        base = "%s/%d/fd" % (proc, pid)
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names[:65536]:
            match = _SOCKET.fullmatch(link(base + "/" + name))
            if match and match.group(1) in inodes:
                holders.setdefault(match.group(1), set()).add(pid)
    return holders


def local_addresses(proc: str, pid: int) -> Set[str]:
    """Addresses that the network namespace of a process calls its own."""
    found: Set[str] = set()
    last = ""
    data, _ = read("%s/%d/net/fib_trie" % (proc, pid), 1024 * 1024)
    for line in (data or b"").decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            last = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"]:
            found.add(last)
    data, _ = read("%s/%d/net/if_inet6" % (proc, pid), 256 * 1024)
    for line in (data or b"").decode("ascii", "replace").splitlines():
        word = line.split()[:1]
        if word and re.fullmatch("[0-9a-f]{32}", word[0]):
            found.add(str(ipaddress.IPv6Address(bytes.fromhex(word[0]))))
    return found


def serves(proc: str, listener: Listener, host: str) -> bool:
    """Whether a connection to `host` may end at this listener."""
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        wanted = str(ipaddress.ip_address(host))
    except ValueError:
        return False
    if ipaddress.ip_address(wanted).is_loopback:
        own = link(proc + "/self/ns/net")
        return listener.namespace == own and listener.address in (wanted, "0.0.0.0", "::")  # noqa: S104
    if listener.address == wanted:
        return True
    return listener.address in ("0.0.0.0", "::") and wanted in local_addresses(proc, listener.sample)  # noqa: S104
