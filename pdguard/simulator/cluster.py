"""Running a simulated cluster: in this event loop, or in a thread of its own for callers that have none."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import yaml

from pdguard.simulator.engine import BootstrapApp, EngineApp
from pdguard.simulator.lies import LyingApp
from pdguard.simulator.pairing import Background, Rendezvous
from pdguard.simulator.router import RouterApp, Upstream
from pdguard.simulator.server import HOST, Server
from pdguard.simulator.spec import ClusterSpec, EngineSpec, Lie

_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Live:
    """A running cluster: where everything listens, and what it has counted."""

    spec: ClusterSpec
    urls: dict[str, str]
    bootstrap_ports: dict[str, int]
    engines: dict[str, EngineApp]
    bootstraps: dict[str, BootstrapApp]
    routers: dict[str, RouterApp]
    rooms: Rendezvous
    server: Server

    def url(self, name: str) -> str:
        """The base URL of an engine or router."""
        return self.urls[name]

    def cluster(self) -> dict[str, Any]:
        """The cluster file's content."""
        engines: list[dict[str, Any]] = []
        for engine in self.spec.engines:
            entry: dict[str, Any] = {"name": engine.name}
            if engine.role != "null":
                entry["role"] = engine.role
            entry["url"] = self.urls[engine.name]
            if engine.name in self.bootstrap_ports:
                entry["bootstrap_port"] = self.bootstrap_ports[engine.name]
            engines.append(entry)
        content: dict[str, Any] = {"cluster": self.spec.name, "engines": engines}
        if self.spec.routers:
            content["routers"] = [
                {
                    "name": router.name,
                    "url": self.urls[router.name],
                    "kind": router.kind,
                    "version": router.version,
                }
                for router in self.spec.routers
            ]
        return content

    def cluster_yaml(self) -> str:
        """A cluster file that names every engine and router."""
        return yaml.safe_dump(self.cluster(), sort_keys=False, default_flow_style=None, width=200)


def raise_open_files_limit() -> None:
    """Allow this process as many sockets as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def running(spec: ClusterSpec) -> AsyncIterator[Live]:
    """Run a cluster for the length of a block; every socket and task is gone afterwards."""
    raise_open_files_limit()
    server, rooms, background = Server(), Rendezvous(), Background()
    live = Live(spec, {}, {}, {}, {}, {}, rooms, server)
    try:
        for engine in spec.engines:
            await _start_engine(live, engine, background)
        for router in spec.routers:
            upstreams = [
                Upstream(one, live.urls[one.name], live.bootstrap_ports.get(one.name))
                for one in spec.engines
                if one.name in router.engines
            ]
            app = RouterApp(router, upstreams, background)
            live.routers[router.name] = app
            live.urls[router.name] = f"http://{HOST}:{await server.listen(app)}"
        yield live
    finally:
        await server.stop()
        await background.stop()
        for app in live.routers.values():
            await app.stop()


async def _start_engine(live: Live, spec: EngineSpec, background: Background) -> None:
    app = EngineApp(spec, live.rooms, background)
    bootstrap_port = None
    if spec.role == "prefill" and spec.bootstrap_port is not None:
        bootstrap = BootstrapApp(spec)
        bootstrap_port = await live.server.listen(bootstrap, spec.bootstrap_port)
        live.bootstraps[spec.name] = bootstrap
        live.bootstrap_ports[spec.name] = bootstrap_port
    if spec.lie is Lie.REFUSED:
        port = live.server.refuse()
    else:
        port = await live.server.listen(app if spec.lie is Lie.NONE else LyingApp(spec, app))
    app.bind(port, bootstrap_port if spec.role == "prefill" else spec.bootstrap_port)
    if spec.name in live.bootstraps:
        live.bootstraps[spec.name].bind(port)
    live.engines[spec.name] = app
    live.urls[spec.name] = f"http://{HOST}:{port}"


@contextmanager
def start_in_thread(spec: ClusterSpec) -> Iterator[Live]:
    """Run a cluster in a thread for the length of a block, for callers without an event loop."""
    started = threading.Event()
    found: list[Live] = []
    failure: list[BaseException] = []
    handles: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def body() -> None:
        done = asyncio.Event()
        handles.append((asyncio.get_running_loop(), done))
        async with running(spec) as live:
            found.append(live)
            started.set()
            await done.wait()

    def run() -> None:
        try:
            asyncio.run(body())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="pdguard-simulator", daemon=True)
    thread.start()
    try:
        started.wait(_START_SECONDS)
        if failure:
            raise failure[0]
        if not found:
            raise TimeoutError(f"the simulated cluster did not start within {_START_SECONDS:.0f} s")
        yield found[0]
    finally:
        if handles:
            loop, done = handles[0]
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(done.set)
        thread.join(_START_SECONDS)
    if failure:
        raise failure[0]
