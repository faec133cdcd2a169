"""Every error that pdguard raises on purpose.

The tree, as a user of the library sees it::

    PdguardError
      InputError            a file or argument of the operator is wrong           exit 2
        ClusterFileError    cluster.yaml, with file:line:col for each problem
        CheckFileError      a check in the catalogue or in --checks DIR
        SelectionError      --select / --skip / explain name nothing
      NothingCollected      not one engine or node could be read                  exit 3
      TransportError        a node could not be reached or did not answer sense

An error carries what was expected, what was found and what to do. It becomes text only in the CLI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input file.

    `line` and `column` count from 1; both are 0 where the file has no such place (a missing file).
    """

    file: str
    line: int
    column: int
    what: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        """`file:line:col: what, expected …, found …`."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        text = f"{place}: {self.what}"
        if self.expected:
            text += f", expected {self.expected}"
        if self.found:
            text += f", found {self.found}"
        return text


class PdguardError(Exception):
    """Base of every error raised on purpose. `expected`, `found` and `todo` are plain sentences or empty."""

    exit_code = 1

    def __init__(self, what: str, *, expected: str = "", found: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.found = found
        self.todo = todo

    def __str__(self) -> str:
        """One line: what, expected, found, what to do."""
        text = self.what
        if self.expected:
            text += f", expected {self.expected}"
        if self.found:
            text += f", found {self.found}"
        if self.todo:
            text += f". {self.todo}"
        return text


class InputError(PdguardError):
    """Something that the operator wrote is wrong; `problems` has one entry for each fault found."""

    exit_code = 2

    def __init__(self, what: str, problems: Sequence[Problem] = (), **more: str) -> None:
        super().__init__(what, **more)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """Every problem on a line of its own, or the plain message."""
        if self.problems:
            return "\n".join(str(p) for p in self.problems)
        return super().__str__()


class ClusterFileError(InputError):
    """cluster.yaml cannot be used as it stands."""


class CheckFileError(InputError):
    """A check file cannot be used as it stands."""


class SelectionError(InputError):
    """A check id, gate or tag was named that does not exist."""


class NothingCollected(PdguardError):
    """Not one engine answered and no node could be read: there is nothing to judge."""

    exit_code = 3


class TransportError(PdguardError):
    """A node could not be reached, or what came back was not what the node script sends."""
