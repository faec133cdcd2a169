"""Faults between the parts of a cluster file: names used twice, and references that lead nowhere.

Works on plain data that may be of any shape, so that these are reported beside the faults of single
fields and not only once those are mended.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

Loc = tuple[str | int, ...]

_SUGGESTIONS = 50


@dataclass(frozen=True, slots=True)
class LinkFault:
    """A fault at `loc`. `earlier` is the other place that it conflicts with."""

    loc: Loc
    what: str
    expected: str
    found: str = ""
    earlier: Loc | None = None


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that `word` was probably meant to be, or nothing."""
    if len(word) > 64:
        return ""
    plain = {k.lower().replace("-", "_"): k for k in known}
    folded = word.lower().replace("-", "_")
    squeezed = {k.replace("_", ""): v for k, v in plain.items()}
    if folded.replace("_", "") in squeezed:
        return squeezed[folded.replace("_", "")]
    close = difflib.get_close_matches(folded, plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else ""


def link_faults(data: object) -> Iterator[LinkFault]:
    """Every duplicate and every dangling reference, in the order engines, routers."""
    engines = list(_mappings(data, "engines"))
    routers = list(_mappings(data, "routers"))
    yield from _duplicates([*engines, *routers])
    yield from _same_url(engines)
    raw_nodes = data.get("nodes") if isinstance(data, dict) else None
    nodes = {n for n in raw_nodes if isinstance(n, str)} if isinstance(raw_nodes, dict) else set()
    names = {name for _, item in engines if isinstance(name := item.get("name"), str)}
    to_nodes = _References("node", nodes, "nodes")
    to_engines = _References("engine", names, "engines")
    for loc, item in [*engines, *routers]:
        yield from to_nodes.check((*loc, "node"), item.get("node"))
        node = item.get("node")
        yield from to_nodes.check_list((*loc, "followers"), item.get("followers"), taken=node)
        if loc[0] == "routers":
            yield from to_engines.check_list((*loc, "engines"), item.get("engines"))


def _mappings(data: object, key: str) -> Iterator[tuple[Loc, dict[str, object]]]:
    items = data.get(key) if isinstance(data, dict) else None
    for index, item in enumerate(items if isinstance(items, list | tuple) else ()):
        if isinstance(item, dict):
            yield (key, index), item


def _duplicates(items: list[tuple[Loc, dict[str, object]]]) -> Iterator[LinkFault]:
    first: dict[str, Loc] = {}
    for loc, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            expected = "a name of its own for each engine and router"
            yield LinkFault((*loc, "name"), "is a name that is taken", expected, earlier=first[name])
        else:
            first[name] = (*loc, "name")


def _same_url(engines: list[tuple[Loc, dict[str, object]]]) -> Iterator[LinkFault]:
    """Two engines at one URL are one server listed twice: half of the fleet would go unseen."""
    first: dict[tuple[str, str], Loc] = {}
    for loc, item in engines:
        url = item.get("url")
        if not isinstance(url, str):
            continue
        try:
            parts = urlsplit(url)
        except ValueError:
            continue  # the field's own check reports it
        key = (parts.scheme + "://" + parts.netloc.lower(), parts.path.rstrip("/"))
        if key in first:
            yield LinkFault(
                (*loc, "url"), "is the URL of another engine", "one URL for each engine", earlier=first[key]
            )
        else:
            first[key] = (*loc, "url")


class _References:
    """References of one kind, with a budget for near-miss searches: each one costs milliseconds."""

    def __init__(self, kind: str, known: set[str], section: str) -> None:
        self.kind = kind
        self.known = known
        self.section = section
        self.budget = _SUGGESTIONS

    def check(self, loc: Loc, name: object) -> Iterator[LinkFault]:
        if not isinstance(name, str) or name in self.known:
            return
        near = ""
        if self.budget:
            self.budget -= 1
            near = nearest(name, self.known)
        # What resembles a known name is a slip of the pen. Anything else may be a key, on either side.
        found = f"{name} (did you mean {near}?)" if near else ""
        expected = near or f"a name that stands under {self.section}"
        yield LinkFault(loc, f"names no {self.kind} of this file", expected, found)

    def check_list(self, loc: Loc, names: object, taken: object = None) -> Iterator[LinkFault]:
        seen: dict[str, Loc] = {taken: (*loc[:-1], "node")} if isinstance(taken, str) else {}
        for index, name in enumerate(names if isinstance(names, list | tuple) else ()):
            place = (*loc, index)
            yield from self.check(place, name)
            if isinstance(name, str) and name in seen:
                yield LinkFault(place, "is listed already", f"each {self.kind} once", earlier=seen[name])
            elif isinstance(name, str):
                seen[name] = place
