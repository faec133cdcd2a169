"""What the servers of a cluster want to be shown: keys and TLS settings, by name, known to be usable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pdguard.cluster.auth import resolve_key, resolve_path
from pdguard.cluster.model import Cluster, Engine, Router
from pdguard.cluster.model import Tls as TlsSettings
from pdguard.errors import InputError
from pdguard.facts._fetch import Tls


def keys_of(
    cluster: Cluster, servers: Iterable[Engine | Router], environ: Mapping[str, str]
) -> dict[str, str]:
    """The API key of each of `servers` that has one. Raises InputError for one that cannot be read."""
    keys = {}
    for one in servers:
        key = resolve_key(cluster.auth_for(one), cluster.base_dir, environ)
        if key is not None:
            keys[one.name] = key.get_secret_value()
    return keys


def tls_of(cluster: Cluster, servers: Iterable[Engine | Router]) -> dict[str, Tls]:
    """The TLS settings of each of `servers` that has some. Raises InputError for unusable files."""
    made: dict[TlsSettings, Tls] = {}
    by_name = {}
    for one in servers:
        if one.tls is None:
            continue
        if one.tls not in made:
            made[one.tls] = usable_tls(one.tls, cluster.base_dir, one.name)
        by_name[one.name] = made[one.tls]
    return by_name


def usable_tls(settings: TlsSettings, base_dir: Path, whose: str) -> Tls:
    """Settings with absolute paths, tried once. Raises InputError for files that cannot be used."""

    def absolute(name: str | None) -> str | None:
        return None if name is None else str(resolve_path(name, base_dir))

    tls = Tls(
        absolute(settings.ca_file),
        absolute(settings.client_cert_file),
        absolute(settings.client_key_file),
        settings.insecure,
    )
    found = ""
    try:
        tls.context()
    except (OSError, ValueError) as error:
        found = type(error).__name__
    if found:
        raise InputError(
            f"the TLS files of {whose} cannot be used", expected="certificates and keys in PEM", found=found
        )
    return tls
