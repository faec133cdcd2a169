"""Reads cluster.yaml. Every fault is reported with its place, as many at once as can be found."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pdguard.cluster.links import link_faults
from pdguard.cluster.model import Cluster
from pdguard.cluster.problems import Told, Translator
from pdguard.cluster.tree import Fault, Tree, Unreadable, read_tree
from pdguard.errors import ClusterFileError, Problem

DEFAULT_FILE = "cluster.yaml"
MAX_BYTES = 4 * 1024 * 1024
MAX_PROBLEMS = 100

_NOT_TEXT = re.compile("[^\\t\\n\\r\\x20-\\x7e\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def load_cluster(path: Path) -> Cluster:
    """The cluster in a file. Raises ClusterFileError with every fault found."""
    return parse_cluster(_read(path), str(path)).placed_in(path.parent)


def parse_cluster(text: str, file: str) -> Cluster:
    """The cluster in `text`; `file` is its name in errors. Raises ClusterFileError."""
    if len(text) > MAX_BYTES:
        raise _file_error(file, "the file is too large", f"at most {MAX_BYTES} bytes")
    text = text.removeprefix("\ufeff")
    bad = _NOT_TEXT.search(text)
    if bad:
        line, column = text.count("\n", 0, bad.start()) + 1, bad.start() - text.rfind("\n", 0, bad.start())
        what = "a NUL byte" if bad.group() == "\0" else f"the control character U+{ord(bad.group()):04X}"
        raise _file_error(file, "the file is not plain text", "printable characters", what, line, column)
    try:
        tree, faults = read_tree(text)
    except Unreadable as error:
        fault = error.fault
    else:
        return _validated(tree, faults, file)
    raise _error(file, [_told(fault)], 0)


def _validated(tree: Tree, faults: list[Fault], file: str) -> Cluster:
    data = tree.plain()
    cluster, errors = None, []
    try:
        cluster = Cluster.model_validate(data)
    except ValidationError as error:
        # Only what is needed is taken: the error itself holds the refused values and must not be chained.
        errors = error.errors(include_url=False, include_input=False)
    translator = Translator(tree)
    links = (translator.link(fault) for fault in link_faults(data))
    found: Iterator[Told] = itertools.chain(map(_told, faults), translator.pydantic(errors), links)
    told = list(itertools.islice(found, MAX_PROBLEMS))
    if told or cluster is None:
        more = sum(1 for _ in itertools.islice(found, 10 * MAX_PROBLEMS)) if len(told) == MAX_PROBLEMS else 0
        raise _error(file, told, more)
    return cluster


def _told(fault: Fault) -> Told:
    return fault.line, fault.column, fault.what, fault.expected, fault.found


def _error(file: str, told: list[Told], more: int) -> ClusterFileError:
    unique = sorted(dict.fromkeys(told), key=lambda t: t[:2])
    problems = [Problem(file, *one) for one in unique]
    if more:
        count = f"{more} more" if more < 10 * MAX_PROBLEMS else "many more"
        problems.append(Problem(file, 0, 0, f"{count} problems are not shown"))
    return ClusterFileError("the cluster file cannot be used as it stands", problems)


def _file_error(
    file: str, what: str, expected: str = "", found: str = "", line: int = 0, column: int = 0
) -> ClusterFileError:
    return ClusterFileError(what, [Problem(file, line, column, what, expected, found)])


def _read(path: Path) -> str:
    """The file's text. Reads no more than the limit, so that a device or an endless pipe is refused too."""
    file = str(path)
    fault = ""
    raw = b""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        fault = "there is no such file (`pdguard demo` shows a cluster, examples/minimal.yaml a file)"
    except IsADirectoryError:
        raise _file_error(file, "cannot be read", "a file", "a directory") from None
    except OSError as error:
        fault = f"cannot be read ({(error.strerror or 'unknown cause').lower()})"
    except ValueError:
        # A name with a NUL byte; it is not repeated, since it cannot be printed.
        raise _file_error("(cluster file)", "the name of the file is not a name") from None
    if fault:
        raise _file_error(file, fault, "a cluster file that can be read")
    if len(raw) > MAX_BYTES:
        raise _file_error(file, "the file is too large", f"at most {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        start = error.start
    line, column = raw.count(b"\n", 0, start) + 1, start - raw.rfind(b"\n", 0, start)
    raise _file_error(
        file, "the file is not UTF-8", "text in UTF-8", f"the byte 0x{raw[start]:02x}", line, column
    )
