"""Runs the node script, and commands, on a machine that the operator's own ssh reaches.

The system's client and the operator's configuration do the work: keys, agent, known hosts, jump hosts, shared
connections. Nothing here prompts, and nothing loosens the check of host keys.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdguard.errors import TransportError
from pdguard.transport import pipes
from pdguard.transport.interface import BOOTSTRAP, PYTHON_FLAGS, Json, Started, framed
from pdguard.transport.ssh_errors import SSH_FAILED, broken, no_program, not_begun

PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python")
"""Tried in this order where the node names no Python."""

CONNECT_SECONDS = 20.0
"""For reaching a node at most, where the time limit is longer or there is none."""

_OPTIONS = (
    *("-T", "-x", "-o", "BatchMode=yes"),
    *("-o", "ClearAllForwardings=yes"),  # for an operator's sessions; a second session cannot bind them
    *("-o", "RemoteCommand=none"),  # or ssh refuses to run ours
    *("-o", "LogLevel=ERROR"),  # enough to tell what went wrong, and no banner
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# One round trip. What the files of a login shell print comes before the line that begins with $0. The text
# passes any login shell that knows single quotes: it has no line break, backslash or exclamation mark.
_FIND = (
    's=none; for p in {programs}; do case $p in "~/"*) p=$HOME/${{p#"~/"}};; esac; '
    'command -v "$p" >/dev/null 2>&1 || continue; s=unfit; {fit}s=ok; break; done; '
    'echo; echo "$0 $s"; [ $s = ok ] || exit 1; exec env -i {variables} "$p" "$@"'
)
_FIT = (
    '"$p" -I -S -B -c "import sys; sys.exit(sys.version_info < (3, 10))" '
    "</dev/null >/dev/null 2>&1 || continue; "
)


@dataclass(frozen=True, slots=True)
class SshTransport:
    """The node is reached with ssh. `config` is a configuration file in place of the operator's own."""

    host: str
    user: str | None = None
    port: int | None = None
    config: str | None = None
    python: str | None = None
    name: str = "ssh"

    def run_script(self, script: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        """Run `script` in a Python of the node; nothing is left of it on this machine when this returns."""
        data = framed(script, json.dumps(request).encode("ascii"))
        pythons = PYTHONS if self.python is None else (self.python,)
        arguments = [*PYTHON_FLAGS, "-c", BOOTSTRAP]
        started = self._start(pythons, arguments, {"LANG": "C.UTF-8"}, ("PATH",), _FIT, timeout)
        child = started.child
        try:
            output, errors = pipes.converse(child, data, timeout)
        finally:
            pipes.end(child)
        before, begin, after = output.partition(started.begin)
        problem = started.explain(None if begin else before, errors, child.returncode)
        if problem is not None and not after:
            raise problem
        return pipes.answer(after, errors, child.returncode)

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], keep: Sequence[str] = ("PATH",)
    ) -> Started:
        """As `Starter.start`; a leading `~/` of `argv[0]` is the home folder over there."""
        return self._start(argv[:1], argv[1:], environment, keep, "", CONNECT_SECONDS)

    def _start(
        self,
        programs: Sequence[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        keep: Sequence[str],
        fit: str,
        timeout: float,
    ) -> Started:
        """Start the first of `programs` that the node has and that passes `fit`, shell or nothing."""
        if not all(map(_NAME.match, (*keep, *environment))):
            raise ValueError("not the names of variables")
        mark = f"pdguard-{secrets.token_hex(8)}"
        kept = [f'${{{name}+"{name}=${name}"}}' for name in keep]
        told = [shlex.quote(f"{name}={value}") for name, value in environment.items()]
        program = _FIND.format(programs=shlex.join(programs), fit=fit, variables=" ".join((*kept, *told)))
        line = shlex.join(["exec", "sh", "-c", program, mark, *arguments])
        try:
            child = subprocess.Popen(
                [*self._client(timeout), line],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise TransportError(
                "ssh could not be started",
                expected="OpenSSH's client on this machine's PATH",
                found=type(error).__name__,
                todo="Install it (openssh-client)",
            ) from error
        by_hand = self._by_hand()

        def explain(before: bytes | None, errors: bytes, code: int) -> TransportError | None:
            if before is None:
                return broken(by_hand) if code == SSH_FAILED else None
            words = re.findall(rb"^%b (\w+)$" % mark.encode(), before, re.MULTILINE)
            if words:
                return no_program(programs, python=bool(fit))
            return not_begun(errors, by_hand)

        return Started(child, f"{mark} ok\n".encode(), explain)

    def _client(self, timeout: float) -> list[str]:
        """The command line of ssh, up to and including the destination."""
        seconds = max(1, math.floor(min(timeout * 0.8, CONNECT_SECONDS)))
        return ["ssh", *_OPTIONS, "-o", f"ConnectTimeout={seconds}", *self._place()]

    def _place(self) -> list[str]:
        config = [] if self.config is None else ["-F", os.path.abspath(self.config)]
        port = [] if self.port is None else ["-p", str(self.port)]
        return [*config, *port, "--", self.host if self.user is None else f"{self.user}@{self.host}"]

    def _by_hand(self) -> str:
        """What an operator may type to see the same."""
        return shlex.join(["ssh", *(word for word in self._place() if word != "--"), "true"])
