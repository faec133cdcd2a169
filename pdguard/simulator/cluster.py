"""Running a simulated cluster: in this event loop, or in a thread of its own for callers that have none."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from pdguard.simulator.engine import BootstrapApp, EngineApp
from pdguard.simulator.lies import LyingApp
from pdguard.simulator.messages import Answer, Request, text_answer
from pdguard.simulator.pairing import Background, Rendezvous
from pdguard.simulator.router import RouterApp, Upstream
from pdguard.simulator.server import HOST, App, Reply, Server, Work
from pdguard.simulator.spec import ClusterSpec, EngineSpec, Lie

_START_SECONDS = 120.0


class _Door:
    """An engine's port, which outlives the engine behind it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._under_way: set[asyncio.Task[Any]] = set()
        self._dropped: set[asyncio.Task[Any]] = set()

    def handle(self, request: Request) -> Answer | Work:
        """Answer one request."""
        result = self._app.handle(request)
        if isinstance(result, Answer):
            return result
        work = result

        async def tracked(reply: Reply) -> Answer | None:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - work always runs in a task
            self._under_way.add(task)
            try:
                return await work(reply)
            except asyncio.CancelledError:
                if task not in self._dropped:
                    raise
                task.uncancel()
                reply.chunked = False
                reply.raw(b"")  # the connection ends, as that of a process that has gone
                return None
            finally:
                self._under_way.discard(task)
                self._dropped.discard(task)

        return tracked

    def replace(self, app: App) -> None:
        """Another engine answers from now on; what the last one was doing ends without an answer."""
        self._app = app
        for task in self._under_way:
            self._dropped.add(task)
            task.cancel()


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
    background: Background
    loop: asyncio.AbstractEventLoop
    doors: dict[str, _Door] = field(default_factory=dict)

    def restart(self, name: str) -> None:
        """Start an engine again at its port: its counters begin at zero, its requests end without an answer.

        May be called from any thread.
        """
        try:
            here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if here:
            self._restart(name)
            return
        done = threading.Event()

        def run() -> None:
            self._restart(name)
            done.set()

        self.loop.call_soon_threadsafe(run)
        if not done.wait(_START_SECONDS):
            raise TimeoutError(f"{name} did not start again within {_START_SECONDS:.0f} s")

    def _restart(self, name: str) -> None:
        spec = replace(self.spec.engine(name), seed={})
        port = int(self.urls[name].rpartition(":")[2])
        self.doors[name].replace(_engine(self, spec, port, self.bootstrap_ports.get(name)))

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
    live = Live(spec, {}, {}, {}, {}, {}, rooms, server, background, asyncio.get_running_loop())
    try:
        for engine in spec.engines:
            await _start_engine(live, engine)
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


async def _start_engine(live: Live, spec: EngineSpec) -> None:
    bootstrap_port = None
    if spec.role == "prefill" and spec.bootstrap_port is not None:
        bootstrap = BootstrapApp(spec)
        bootstrap_port = await live.server.listen(bootstrap, spec.bootstrap_port)
        live.bootstraps[spec.name] = bootstrap
        live.bootstrap_ports[spec.name] = bootstrap_port
    if spec.lie is Lie.REFUSED:
        port = live.server.refuse()
        _engine(live, spec, port, bootstrap_port)
    else:
        door = _Door(_Starting())
        port = await live.server.listen(door)
        door.replace(_engine(live, spec, port, bootstrap_port))
        live.doors[spec.name] = door
    if spec.name in live.bootstraps:
        live.bootstraps[spec.name].bind(port)
    live.urls[spec.name] = f"http://{HOST}:{port}"


class _Starting:
    """Answers while an engine does not know its port yet."""

    def handle(self, request: Request) -> Answer:
        """Answer one request."""
        del request
        return text_answer(503, "starting")


def _engine(live: Live, spec: EngineSpec, port: int, bootstrap_port: int | None) -> App:
    """An engine from its start, and what answers in its place where it lies."""
    app = EngineApp(spec, live.rooms, live.background)
    app.bind(port, bootstrap_port if spec.role == "prefill" else spec.bootstrap_port)
    live.engines[spec.name] = app
    return app if spec.lie is Lie.NONE else LyingApp(spec, app)


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
