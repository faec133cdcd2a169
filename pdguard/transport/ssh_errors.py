"""What went wrong between ssh and the node, told from the phrases that ssh is known to use.

Standard error may hold banners, names and secrets: it is searched, never quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdguard.errors import TransportError

SSH_FAILED = 255
"""ssh's exit code where ssh itself failed; a command that exits so cannot be told from it."""


@dataclass(frozen=True, slots=True)
class _Kind:
    phrases: tuple[str, ...]
    what: str
    todo: str


_LOG_IN = "give it a key that works without a passphrase prompt (ssh-agent), and check user: and host:"
_REACH = "check host: and port:, and that sshd runs there"
_KINDS = (
    _Kind(
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", "POSSIBLE DNS SPOOFING DETECTED"),
        "ssh: the host key of the node, or of a jump host, is not the one that is known",
        "find out why it changed before trusting it; then renew it in known_hosts (ssh-keygen -R)",
    ),
    _Kind(
        ("Host key verification failed", "host key is known for", "REVOKED HOST KEY"),
        "ssh: the host key of the node, or of a jump host, is not known",
        "compare the key and add it to known_hosts, by logging in once by hand",
    ),
    _Kind(
        (
            *("ad configuration option", "Can't open user config file", "Bad owner or permissions on"),
            *("extra arguments at end of line", "missing argument."),
        ),
        "ssh: the client's configuration cannot be used",
        "check the file named by config:, or ~/.ssh/config",
    ),
    _Kind(
        ("Permission denied (", "Too many authentication failures", "UNPROTECTED PRIVATE KEY FILE"),
        "ssh: permission denied",
        _LOG_IN,
    ),
    _Kind(
        ("Could not resolve hostname", "hostname contains invalid characters"),
        "ssh: the host name does not resolve",
        "check host:, and the Host entries of the ssh configuration",
    ),
    _Kind(("Connection refused",), "ssh: connection refused", _REACH),
    _Kind(
        ("timed out",),
        "ssh: the node did not answer in time",
        f"{_REACH}; a firewall may drop the packets",
    ),
    _Kind(("No route to host", "Network is unreachable"), "ssh: there is no route to the node", _REACH),
    _Kind(
        ("stdio forwarding failed", "administratively prohibited"),
        "ssh: the jump host does not let through to the node",
        "AllowTcpForwarding and PermitOpen of its sshd decide that",
    ),
    _Kind(
        ("Unable to negotiate", "no matching", "Protocol major versions differ"),
        "ssh: client and node share no algorithm",
        "see HostKeyAlgorithms and KexAlgorithms of the ssh configuration",
    ),
    _Kind(
        ("Connection closed", "Connection reset", "kex_exchange_identification", "Broken pipe"),
        "ssh: the connection was closed before the login",
        f"{_REACH}; its log says why (MaxStartups, an allow list)",
    ),
    _Kind(
        ("not currently available", "account is not available", "account has expired"),
        "ssh: the account on the node has no shell",
        "name another one with user:",
    ),
)


def not_begun(errors: bytes, by_hand: str) -> TransportError:
    """The node never came to run our command."""
    text = errors.decode("utf-8", "replace")
    for kind in _KINDS:
        if any(phrase in text for phrase in kind.phrases):
            return TransportError(kind.what, todo=f"{_capital(kind.todo)}. To see it: {by_hand}")
    return TransportError(
        "ssh: the node did not run the command",
        expected="a login shell that runs what it is given",
        found="none, or another command",
        todo=f"See whether this ends well: {by_hand}. A ForceCommand or a restricted shell stands in the way",
    )


def broken(by_hand: str) -> TransportError:
    """The command had begun."""
    return TransportError(
        "ssh: the connection to the node broke, or the command there was killed",
        expected="an answer",
        found="the end of the connection",
        todo=f"Try again; see whether this ends well: {by_hand}",
    )


def no_program(programs: Sequence[str], *, python: bool) -> TransportError:
    """The node has none of the programs, or none that fits."""
    if not python:
        return TransportError(
            "the node has no such program",
            expected=programs[0],
            found="none",
            todo="Name it as it is called on the node",
        )
    tried = "none of " + ", ".join(programs) if len(programs) > 1 else f"{programs[0]} is not one"
    return TransportError(
        "the node has no Python that fits",
        expected="Python 3.10 or newer",
        found=tried,
        todo="Name one with `python:` of the node: any will do, the engine's own for one",
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
