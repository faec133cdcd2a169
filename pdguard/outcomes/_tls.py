"""TLS settings of a cluster file, with absolute paths and known to be usable."""

from __future__ import annotations

from pathlib import Path

from pdguard.cluster.auth import resolve_path
from pdguard.cluster.model import Tls as TlsSettings
from pdguard.errors import InputError
from pdguard.facts._fetch import Tls


def usable_tls(settings: TlsSettings | None, base_dir: Path, whose: str) -> Tls:
    """The settings for connections. Raises InputError for files that cannot be used."""
    if settings is None:
        return Tls()

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
            f"the TLS files of {whose} cannot be used",
            expected="certificates and keys in PEM",
            found=found,
        )
    return tls
