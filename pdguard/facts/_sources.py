"""The sources of all engines of one run: what to ask the nodes for, and the contents behind the hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pdguard._bundle import bundled
from pdguard.facts.process import Found
from pdguard.facts.source import EngineSource, source_request, tree_reader
from pdguard.fingerprint.contents import ContentStore, cache_folder, fetch_contents, holders
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher, Reader
from pdguard.node.bundle import script
from pdguard.transport.interface import Json, Transport


@dataclass(slots=True)
class Sources:
    """The fix catalogue's view of a fleet; nothing is read from a disk where no node is read."""

    store: ContentStore
    matcher: Matcher
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> Sources:
        """With the bundled fix catalogue, and the cache folder that the environment names."""
        return cls(ContentStore(cache_folder(environ)), Matcher(load_fixes(bundled("remediations"))))

    def request(self) -> dict[str, Json]:
        """What to add to a node request."""
        return {"source": source_request(self.matcher.watched())}

    def fetch(
        self, found: Iterable[tuple[str, Found | None]], transport: Callable[[str], Transport], timeout: float
    ) -> None:
        """Get each content that an engine of `found` (node, what was found there) runs and nobody has yet."""

        def ask(node: str, items: list[Json]) -> Json:
            request: dict[str, Json] = {
                **self.request(),
                "contents": items,
                "seconds": max(1.0, timeout * 0.8),
            }
            return transport(node).run_script(script(), request, timeout)

        engines = [
            (node, one.engine.pid, one.source.hashes())
            for node, one in found
            if one is not None and one.engine is not None and one.source is not None
        ]
        self.missing = fetch_contents(self.store, holders(engines), ask)

    def reader(self, source: EngineSource | None) -> Reader:
        """A reader of one engine's files, for `matcher.find`."""
        return tree_reader(source, self.store.text)
