"""The kinds of value that a cluster file holds: names, addresses, paths, dates.

A pattern and the words that explain it stand together, because an error shows the words. No check here quotes
the value it refuses: the value may be a key that went into the wrong field.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

PATTERN_WORDS: dict[str, str] = {}
"""What each pattern below asks for, in words, for errors."""

OWN_ERROR = "pdguard"
"""The type of errors with `what`, `expected` and perhaps `field` (where to point) in their context."""


def refuse(what: str, expected: str, field: str = "") -> PydanticCustomError:
    """An error in our own words; `field` points at a sibling when the fault lies there."""
    return PydanticCustomError(OWN_ERROR, "{what}", {"what": what, "expected": expected, "field": field})


def _text(pattern: str, words: str, most: int = 128) -> Any:
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern, min_length=1, max_length=most)


# A leading '-' is refused wherever a value ends up on a command line.
Name = Annotated[str, _text(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "a name of letters, digits, '.', '_' and '-'")]
EnvName = Annotated[str, _text(r"^[A-Z_][A-Z0-9_]*$", "the name of an environment variable, in capitals")]
PathText = Annotated[str, _text(r"^[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$", "a path", 4096)]
Command = Annotated[
    str, _text(r"^[A-Za-z0-9_./~][A-Za-z0-9_./~+-]*$", "a command or a path without spaces", 4096)
]
SshHost = Annotated[
    str,
    _text(
        r"^[A-Za-z0-9_][A-Za-z0-9._-]*$|^[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?$", "a host name or an address", 253
    ),
]
UserName = Annotated[str, _text(r"^[A-Za-z_][A-Za-z0-9._-]*$", "a user name", 64)]
KubeName = Annotated[
    str,
    _text(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "a Kubernetes name: small letters, digits, '.' and '-'", 253),
]
KubeContext = Annotated[str, _text(r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", "the name of a kubectl context", 512)]
ContainerName = Annotated[str, _text(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "the name or id of a container")]
DockerHost = Annotated[
    str,
    _text(
        r"^(unix://|tcp://|ssh://([A-Za-z_][A-Za-z0-9._-]*@)?)[A-Za-z0-9._:/\[\]-]+$",
        "unix://, tcp:// or ssh:// and a place, without a password",
        512,
    ),
]
LabelName = Annotated[str, _text(r"^[A-Za-z_][A-Za-z0-9_]*$", "a Prometheus label name")]
LabelValue = Annotated[str, _text(r"^[^\x00-\x1f\x7f]+$", "a label value", 512)]
HeaderName = Annotated[str, _text(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "the name of an HTTP header")]
CheckId = Annotated[str, _text(r"^PDG[0-9]{3}$", "the id of a check, such as PDG101")]
TargetGlob = Annotated[str, _text(r"^[^\x00-\x1f\x7f]+$", "the name of a target, or a glob", 512)]
Sentence = Annotated[str, _text(r"\S", "a reason in words", 2000)]

Port = Annotated[int, Field(ge=1, le=65535)]

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?\Z")
_URL_CHARS = re.compile(r"[!-~]+\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


def _check_url(value: str) -> str:
    """A URL without trailing slash. Everything that could carry a credential is refused."""
    if not value.lower().startswith(("http://", "https://")):
        raise refuse(
            "is not a URL that pdguard can read",
            "http:// or https://, a host, and no more than a port and a path",
        )
    if not _URL_CHARS.match(value) or "\\" in value:
        raise refuse("has characters that a URL cannot hold", "a URL of printable ASCII, without spaces")
    if "@" in value:
        raise refuse(
            "carries user information", "a URL without it; name the key by auth: {api_key_env: VARIABLE}"
        )
    if "?" in value or "#" in value:
        raise refuse("has a query or a fragment", "a URL that ends with its path")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname or "", parts.port
        good = bool(_HOST.match(host)) and port != 0
        if ":" in host:
            good = bool(ipaddress.ip_address(host)) and port != 0
    except ValueError:
        good = False
    # 'host:' has an empty port, which urlsplit takes for none.
    if not good or parts.netloc.endswith(":"):
        raise refuse("has no usable host or port", "a host name or an address, and a port of 1 to 65535")
    return value.rstrip("/")


def _check_date(value: object) -> object:
    if isinstance(value, datetime.date):
        return value
    if isinstance(value, str) and _DATE.match(value):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            raise refuse("is no day of the calendar", "a date, YYYY-MM-DD") from None
    raise refuse("is not a date", "a date, YYYY-MM-DD")


def _check_version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion:
        raise refuse("is not a version", "a version such as 0.3.2 (PEP 440)") from None
    return value


Url = Annotated[
    str,
    Field(max_length=2048),
    AfterValidator(_check_url),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 2048,
            "pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9._-]*)(:[0-9]{1,5})?(/[!-~]*)?$",
            "not": {"pattern": r"[@?#\\]"},
        }
    ),
]
Day = Annotated[
    datetime.date,
    BeforeValidator(_check_date),
    WithJsonSchema({"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
]
PepVersion = Annotated[str, Field(max_length=64), AfterValidator(_check_version)]
