"""Release outcomes and sizes from an engine's /metrics, without keeping the text.

A scrape is large and a handful of its lines matter. `LineFilter` takes the body as it arrives and keeps only
those; Prometheus's own parser then reads them (`parse_lines`), each line alone where one of them is broken.

Counting: ranks of one tensor- or pipeline-parallel group count the same requests, so within a group the
largest counts; data-parallel ranks serve different requests, so they add up. A labelled counter has no series
before its first event, so where the release is known to have the counter, absence is zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdguard.facts._read import MAX_WHOLE
from pdguard.facts.interface import FactSet, Grade
from pdguard.facts.versions import EngineVersion, Release, parse_version

PATH = "/metrics"
SOURCE = "metrics"
RELEASES = "sglang:decode_deferred_kv_release_total"
HELD = "sglang:num_decode_deferred_kv_release_reqs"
ABORTED = "sglang:num_aborted_requests_total"
FAILED = "sglang:num_transfer_failed_reqs_total"
POOL = "sglang:max_total_num_tokens"
CONTEXT = "sglang:context_len"
NEEDED = (RELEASES, HELD, ABORTED, FAILED, POOL, CONTEXT)
RELEASES_SINCE: Release = (0, 5, 22)

OUTCOMES = (("holds_drained", "drained"), ("holds_timeout", "timeout"), ("holds_error", "error"))
FACTS = (
    *(fact for fact, _ in OUTCOMES),
    "aborted_requests",
    "failed_transfers",
    "metric_pool",
    "metric_context",
)
HOW = "start the engine with --enable-metrics"

_MAX_LINE = 16 * 1024
_MAX_LINES = 20_000
_NONE_YET = "no series yet"

Sample = tuple[Mapping[str, str], float]


class LineFilter:
    """Takes a body in pieces and keeps the lines of the samples that are needed, by their full names.

    `sglang` tells whether any series of SGLang came, `full` whether there were more lines than are kept.
    """

    __slots__ = ("_names", "_prefixes", "_rest", "_skipping", "full", "lines", "sglang")

    def __init__(self, names: Iterable[str] = NEEDED) -> None:
        self._names = frozenset(name.encode() for name in names)
        self._prefixes = tuple(self._names)
        self.lines: list[bytes] = []
        self.sglang = False
        self.full = False
        self._rest = b""
        self._skipping = False

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        if self._rest:
            piece = self._rest + piece
        end = piece.rfind(b"\n")
        if end < 0:
            # A line without end is not collected, however long it grows.
            self._skipping = self._skipping or len(piece) > _MAX_LINE
            self._rest = b"" if self._skipping else piece
            return
        self._rest = piece[end + 1 :]
        lines = piece[:end].split(b"\n")
        if self._skipping:
            del lines[0]
            self._skipping = False
        self._keep(lines)

    def close(self) -> None:
        """The body is over: the last line need not end with a newline."""
        if self._rest and not self._skipping:
            self._keep([self._rest])
        self._rest = b""

    def _keep(self, lines: list[bytes]) -> None:
        if not self.sglang:
            self.sglang = any(line.startswith(b"sglang:") for line in lines)
        found = [
            line
            for line in lines
            if line.startswith(self._prefixes) and len(line) <= _MAX_LINE and _name_of(line) in self._names
        ]
        room = _MAX_LINES - len(self.lines)
        self.lines.extend(found[:room])
        self.full = self.full or len(found) > room


def _name_of(line: bytes) -> bytes:
    name = line.partition(b"{")[0] if b"{" in line else line.split(None, 1)[0]
    return name.strip()


@dataclass(frozen=True, slots=True)
class Family:
    """The usable samples of one name, and whether any line of it was broken."""

    samples: list[Sample]
    broken: bool


def read_metrics(facts: FactSet, text: LineFilter) -> None:
    """Add every fact of grade observed that the kept lines tell."""
    families = parse_lines(text.lines, NEEDED)
    empty = Family([], broken=False)
    releases = families.get(RELEASES, empty)
    version = parse_version(facts.text("version") or "")
    has_counter = HELD in families or (version is not None and counts_releases(version))
    for fact, outcome in OUTCOMES:
        mine = [(labels, value) for labels, value in releases.samples if labels.get("outcome") == outcome]
        ref = f'{RELEASES}{{outcome="{outcome}"}}'
        known = has_counter or bool(releases.samples)
        _counter(facts, fact, ref, Family(mine, releases.broken), text, known=known)
    _counter(facts, "aborted_requests", ABORTED, families.get(ABORTED, empty), text, known=True)
    _counter(facts, "failed_transfers", FAILED, families.get(FAILED, empty), text, known=True)
    _smallest(facts, "metric_pool", POOL, families.get(POOL, empty), since="0.5.10")
    _smallest(facts, "metric_context", CONTEXT, families.get(CONTEXT, empty), since="0.5.18")


def counts_releases(version: EngineVersion) -> bool:
    """Whether the release surely has the counter; a development build of the first one may not."""
    if version.kind == "development":
        return version.release > RELEASES_SINCE
    return version.release >= RELEASES_SINCE


def parse_lines(lines: Iterable[bytes], names: Iterable[str]) -> dict[str, Family]:
    """Samples by name, of the names given.

    NaN, infinite and negative values and broken lines cost themselves only.
    """
    from prometheus_client.parser import text_string_to_metric_families

    def samples(text: str) -> list[tuple[str, Mapping[str, str], float]]:
        return [
            (s.name, s.labels, s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
        ]

    wanted = frozenset(names)
    texts = [line.decode("utf-8", "replace") for line in lines]
    found: list[tuple[str, Mapping[str, str], float]] = []
    broken: set[str] = set()
    try:
        found = samples("\n".join(texts) + "\n")
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        found = []
        for text in texts:
            try:
                found.extend(samples(text + "\n"))
            except (ValueError, IndexError, KeyError, TypeError, AttributeError):
                broken.add(_name_of(text.encode()).decode())
    families: dict[str, Family] = {}
    for name, labels, value in found:
        if name not in wanted:
            continue
        usable = isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= MAX_WHOLE
        family = families.get(name)
        if family is None:
            family = families[name] = Family([], broken=name in broken)
        if usable:
            family.samples.append((labels, float(value)))
        else:
            broken.add(name)
    return {
        name: Family(families[name].samples if name in families else [], broken=name in broken)
        for name in {*families, *broken}
    }


def _counter(facts: FactSet, fact: str, ref: str, family: Family, text: LineFilter, *, known: bool) -> None:
    if family.broken and not family.samples:
        facts.miss(fact, f"{PATH} {ref}: no line of it could be read")
    elif family.samples:
        facts.add(fact, int(counted(family.samples)), Grade.OBSERVED, SOURCE, f"{PATH} {ref}")
    elif not text.sglang:
        facts.miss(fact, f"{PATH} holds no series of SGLang", HOW)
    elif known:
        facts.add(fact, 0, Grade.OBSERVED, SOURCE, f"{PATH} {ref}", shown=_NONE_YET)
    else:
        facts.miss(fact, f"{PATH} has no {ref}, which came with 0.5.22")


def counted(samples: Iterable[Sample]) -> float:
    """Requests behind the samples of one counter: the largest of a group's ranks, DP ranks added."""
    groups: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in samples:
        if labels.get("priority"):
            continue  # the series without a priority holds the total
        kept = (item for item in labels.items() if item[0] == "dp_rank" or not item[0].endswith("_rank"))
        key = tuple(sorted(kept))
        groups[key] = max(value, groups.get(key, 0.0))
    return min(sum(groups.values()), float(MAX_WHOLE))


def _smallest(facts: FactSet, fact: str, name: str, family: Family, since: str) -> None:
    values = [int(value) for _, value in family.samples if value >= 1]
    if values:
        facts.add(fact, min(values), Grade.OBSERVED, SOURCE, f"{PATH} {name}")
    elif family.broken or family.samples:
        facts.miss(fact, f"{PATH} {name}: expected a whole number of 1 or more, none came")
    else:
        facts.miss(fact, f"{PATH} has no {name}, which came with {since} or before")
