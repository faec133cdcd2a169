"""The line that harden puts into every file that it changes, and what it says to those who find it later."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pdguard.fingerprint.match import Reader

_NOTICE = re.compile(r"^# Changed by pdguard [\w.+]+, fixes ((?:\w+, )*\w+)\. ", re.MULTILINE)
_HEAD = 400


def notice(tool: str, fixes: Iterable[str]) -> str:
    """The line, for a file that was changed by `tool` (`pdguard 0.1.0`) for these fixes."""
    undo = "pdguard harden --rollback --target <the sglang folder>"
    return f"# Changed by {tool}, fixes {', '.join(fixes)}. To undo it: {undo}\n"


def hardened_fixes(read: Reader, files: Iterable[str]) -> frozenset[str]:
    """The fixes that pdguard says it put into these files. A file that cannot be read says nothing."""
    found: set[str] = set()
    for file in files:
        try:
            got = read(file)
        except LookupError:
            continue
        match = _NOTICE.search(got[1][:_HEAD]) if got is not None else None
        found |= set(match[1].split(", ")) if match else set()
    return frozenset(found)
