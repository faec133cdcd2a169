"""Keys and header values at the moment they are needed. Errors name where a key is, never the key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from pdguard.cluster.model import Auth
from pdguard.errors import InputError

_MAX_KEY = 64 * 1024
_HEADER_SAFE = re.compile(r"[!-~]([ -~]*[!-~])?\Z")
# A key pasted where a path belongs must not come back in an error, so only what is surely a path is shown.
_SURELY_A_PATH = re.compile(r"(~?/|\.{1,2}/).*|[\w./-]+\.(key|txt|token|pem|secret|env)\Z")


class AuthProblem(InputError):
    """A key that the cluster file names cannot be had."""


def resolve_path(name: str, base_dir: Path) -> Path:
    """A path of the cluster file: `~` is the home folder; the rest is relative to the file's folder."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        path = Path(name)  # no such user: the file will not be found, and that is reported with its name
    return base_dir / path


def resolve_key(auth: Auth | None, base_dir: Path, environ: Mapping[str, str]) -> SecretStr | None:
    """The API key that `auth` names, or None where there is no auth. Raises AuthProblem."""
    if auth is None:
        return None
    if auth.api_key_env is not None:
        return _from_env(auth.api_key_env, environ)
    return _from_file(auth.api_key_file or "", base_dir)


def resolve_headers(headers_env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, SecretStr]:
    """Values of the headers that `prometheus.headers_env` names. Raises AuthProblem."""
    return {header: _from_env(variable, environ) for header, variable in headers_env.items()}


def _from_env(variable: str, environ: Mapping[str, str]) -> SecretStr:
    value = environ.get(variable)
    if value is None:
        raise AuthProblem(
            f"the environment variable {variable} is not set",
            expected="a key in it",
            todo=f"Set {variable}, or change auth in the cluster file.",
        )
    return _checked(value, f"the environment variable {variable}")


def _from_file(name: str, base_dir: Path) -> SecretStr:
    shown = f"the key file {name}" if _SURELY_A_PATH.match(name) else "the file that api_key_file names"
    cause = ""
    raw = b""
    try:
        with resolve_path(name, base_dir).open("rb") as stream:
            raw = stream.read(_MAX_KEY + 1)
    except OSError as error:
        cause = (error.strerror or "unknown cause").lower()
    if cause:
        raise AuthProblem(
            f"{shown} cannot be read",
            expected="a file that holds the key",
            found=cause,
            todo="Check its path and mode.",
        )
    if len(raw) > _MAX_KEY:
        raise AuthProblem(f"{shown} is too large for a key", expected=f"at most {_MAX_KEY} bytes")
    # latin-1 takes any byte; what is not ASCII is refused below, by one rule for files and variables.
    return _checked(raw.decode("latin-1"), shown)


def _checked(value: str, where: str) -> SecretStr:
    key = value.strip()
    if not key:
        raise AuthProblem(f"{where} is empty", expected="a key")
    if not _HEADER_SAFE.match(key):
        raise AuthProblem(
            f"{where} holds what an HTTP header cannot carry", expected="one line of printable ASCII"
        )
    return SecretStr(key)
