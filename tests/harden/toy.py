"""A toy engine, a toy catalogue and toy backports: small enough to read, shaped like the real ones."""

from __future__ import annotations

from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import Fix, Part, Place, State
from pdguard.harden.model import Backport, Seam
from pdguard.harden.plan import Tree

DOORS = "srt/doors.py"
HOLDS = "srt/holds.py"

STOCK = {
    DOORS: (
        "from typing import Any\n\n\nclass Queue:\n    def add(self, req: Any) -> None:\n"
        '        """Take it in."""\n        self.queue.append(req)\n'
    ),
    HOLDS: (
        "import logging\n\n\ndef release(room):\n    pages.free(room)\n\n\n"
        "def fail(room):\n    release(room)\n"
    ),
    "version.py": '__version__ = "1.2.0"\n',
}


def _fix(name: str, file: str, path: str, fixed: str, vulnerable: str, requires: tuple[str, ...] = ()) -> Fix:
    place = Place(file, path, {"pattern": fixed}, {"pattern": vulnerable})
    part = Part("it", (place,), without_file=State.NOT_APPLICABLE)
    return Fix(name, f"Title of {name}", "", (), "both", (part,), requires=requires)


FIXES = (
    _fix("10001", DOORS, "Queue.add", "if pdguard_doors.refuse($$$): return", "self.queue.append($_)"),
    _fix("10002", HOLDS, "release", "pdguard_holds.release($_)", "pages.free($_)"),
    _fix("10003", HOLDS, "fail", "pdguard_holds.fail($_)", "release($_)", ("10002",)),
)
"""The first shows both forms in a hardened tree; see `door`."""

PAYLOAD = {
    "__init__.py": '"""The payload."""\n',
    "doors.py": "refuse = bool\n",
    "holds.py": "release = print\n",
}


def door(put: str = "instead") -> Backport:
    """The door; the toy catalogue knows it only where the append is gone."""
    code = "if pdguard_doors.refuse(self, $REQ): return"
    find = {"pattern": "self.queue.append($REQ)"}
    return Backport("10001", "1.2.0", (Seam("door", DOORS, "Queue.add", find, put, code),))  # type: ignore[arg-type]


BACKPORTS = (
    door(),
    Backport(
        "10002",
        "1.2.0",
        (
            Seam(
                "free",
                HOLDS,
                "release",
                {"pattern": "pages.free($R)"},
                "instead",
                "pdguard_holds.release($R)",
            ),
        ),
    ),
    Backport(
        "10003",
        "1.2.0",
        (Seam("fail", HOLDS, "fail", {"pattern": "release($R)"}, "instead", "pdguard_holds.fail($R)"),),
    ),
)


def tree(texts: dict[str, str] | None = None, version: str = "1.2.0", **more: object) -> Tree:
    """The toy engine as it was installed."""
    import hashlib

    originals = {path: text.encode() for path, text in (STOCK if texts is None else texts).items()}
    current = {path: hashlib.sha256(data).hexdigest() for path, data in originals.items()}
    return Tree("/opt/sglang", version, current, originals, **more)  # type: ignore[arg-type]


def matcher() -> Matcher:
    return Matcher(FIXES)
