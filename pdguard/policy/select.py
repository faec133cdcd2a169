"""Which checks run: --select and --skip by id, gate or tag."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from pdguard.errors import SelectionError
from pdguard.policy.model import GATES, Check

_ID_BEGINNING = re.compile(r"[A-Z]{3,8}[0-9]{1,3}")


def select_checks(checks: Sequence[Check], select: Iterable[str], skip: Iterable[str]) -> tuple[Check, ...]:
    """The checks named by `select` (all where it is empty) less those named by `skip`.

    A name is an id in full or its beginning (`PDG1`), a gate or a tag; several may be joined by commas.
    Raises SelectionError for a name that fits nothing.
    """
    wanted = _names(checks, select)
    unwanted = _names(checks, skip)
    kept = [c for c in checks if not wanted or any(_fits(c, n) for n in wanted)]
    left = tuple(c for c in kept if not any(_fits(c, n) for n in unwanted))
    if checks and not left:
        raise SelectionError("--select and --skip together leave no check", expected="at least one")
    return left


def find_check(checks: Sequence[Check], check_id: str) -> Check:
    """The check with this id, in any case. Raises SelectionError, with the nearest id, for any other."""
    for check in checks:
        if check.id == check_id.upper():
            return check
    if any(check_id in (c.gate, *c.tags) for c in checks):
        raise SelectionError(
            f"{check_id!r} is a gate or a tag, expected one id",
            todo=f"`pdguard checks --select {check_id}` lists its checks.",
        )
    raise _no_such(check_id, [c.id for c in checks])


def _names(checks: Sequence[Check], given: Iterable[str]) -> list[str]:
    names = [n.strip() for text in given for n in text.split(",") if n.strip()]
    for name in names:
        if not any(_fits(c, name) for c in checks):
            known = [c.id for c in checks] + list(GATES) + sorted({t for c in checks for t in c.tags})
            raise _no_such(name, known)
    return names


def _fits(check: Check, name: str) -> bool:
    begins = _ID_BEGINNING.fullmatch(name.upper()) is not None and check.id.startswith(name.upper())
    return begins or check.gate == name or name in check.tags


def _no_such(name: str, known: Sequence[str]) -> SelectionError:
    near = difflib.get_close_matches(name, known, 1, 0.8) or difflib.get_close_matches(
        name.upper(), known, 1, 0.8
    )
    if any(c.isdigit() for c in name):
        near = []  # a wrong number has no nearest one
    return SelectionError(
        f"no check, gate or tag is called {name!r}",
        expected=near[0] if near else "an id such as PDG101, a gate or a tag",
        todo="`pdguard checks` lists them.",
    )
