"""A real sshd on loopback, with keys and configuration of its own, and a client configuration for it."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pdguard.transport.ssh import SshTransport

_SEPARATION = Path("/run/sshd")


def need_sshd() -> str:
    """The path of sshd; skips the test where there is none, or none that can run here."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd, ssh or ssh-keygen (openssh-server, openssh-client)")
    if os.geteuid() == 0 and not _SEPARATION.is_dir():
        pytest.skip(f"sshd as root wants an empty folder {_SEPARATION}")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_key(path: Path) -> Path:
    """A key pair without passphrase, `path` and `path.pub`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def public(path: Path) -> str:
    """Type and key, without the comment."""
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@dataclass
class Sshd:
    """One running sshd. The client's configuration calls it `node`."""

    folder: Path
    port: int
    host_key: Path
    user_key: Path
    more: list[str] = field(default_factory=list)
    """Further lines of the client's configuration for `node`."""

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def config(self) -> Path:
        return self.folder / "config"

    def know(self, key: str) -> None:
        """Trust `key`, and no other, as this sshd's."""
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key}\n")

    def entry(self, name: str) -> str:
        """The client's configuration for this sshd."""
        lines = [
            f"Host {name}",
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f"User {self.user}",
            f"IdentityFile {self.user_key}",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null",
            *self.more,
        ]
        return "\n  ".join(lines) + "\n"

    def transport(self, python: str | None = None, *others: Sshd) -> SshTransport:
        """A transport that takes its configuration from here; `others` are called node1 …"""
        entries = [self.entry("node"), *(o.entry(f"node{i}") for i, o in enumerate(others, 1))]
        self.config.write_text("".join(entries))
        return SshTransport("node", config=str(self.config), python=python)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@contextmanager
def sshd(folder: Path, *lines: str) -> Iterator[Sshd]:
    """An sshd with `lines` added to its configuration; ended by its id."""
    program = need_sshd()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = Sshd(folder, port, new_key(folder / "host"), new_key(folder / "user"))
    server.know(public(server.host_key))
    (folder / "authorized").write_text(public(server.user_key) + "\n")
    configured = [
        *lines,  # the first word on a setting counts
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {server.host_key}",
        f"PidFile {folder / 'pid'}",
        f"AuthorizedKeysFile {folder / 'authorized'}",
        f"SetEnv HOME={folder}",  # the files of this user's shell are no part of the tests
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin yes",
        "PrintMotd no",
        "LogLevel VERBOSE",
        "MaxStartups 100",
    ]
    (folder / "sshd_config").write_text("\n".join(configured) + "\n")
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [program, "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _listening(server, child)
        yield server
    finally:
        child.terminate()
        child.wait(10)


def _listening(server: Sshd, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while "Server listening" not in server.log():
        assert child.poll() is None, server.log()
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)
