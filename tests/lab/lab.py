"""Starts a deployment, hands it out, and stops it whatever happens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from . import launch, netns
from .cache import Cache
from .client import Answer, call, call_all, generate_body, prompt
from .errors import ProvisionError, StartError
from .process import Server, stop_all
from .progress import Progress, to_stderr
from .provision import STUBS, Provision
from .spec import LabSpec, Role, RouterKind

_POLL = 0.5
_PROGRESS_EVERY = 15.0
_WARM_TIMEOUT = 60.0
_ROUTER_TIMEOUT = 60.0
_OTHER_ROUTER = 1
_ROUTER_METRICS = 5
_ROLES: tuple[Role, ...] = ("prefill", "decode")
# All ranks -1 is how a decode asks whether every rank of the prefill has registered.
_RANKS = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
_ROUTE_QUERY = urlencode(dict.fromkeys(_RANKS, -1))


@dataclass(frozen=True)
class Engine:
    """One running SGLang server. `server.pid` is the `sglang.launch_server` process itself."""

    name: str
    role: Role
    url: str
    server: Server
    bootstrap_port: int | None = None


@dataclass(frozen=True)
class Router:
    """The running router."""

    name: str
    kind: str
    url: str
    metrics_url: str
    server: Server


@dataclass(frozen=True)
class Halves:
    """One request as a router sends it: the same body to both halves, with one bootstrap room."""

    prefill_url: str
    decode_url: str
    body: dict[str, Any]

    @property
    def urls(self) -> tuple[str, str]:
        return self.prefill_url, self.decode_url


@dataclass(frozen=True)
class Pair:
    """The two answers to one request that went to both halves."""

    prefill: Answer
    decode: Answer


@dataclass(frozen=True)
class Lab:
    """A running deployment."""

    spec: LabSpec
    cache: Cache
    run_dir: Path
    engines: tuple[Engine, ...]
    router: Router | None = None

    def of_role(self, role: Role) -> tuple[Engine, ...]:
        return tuple(engine for engine in self.engines if engine.role == role)

    @property
    def prefill(self) -> Engine:
        """The first prefill."""
        return self.of_role("prefill")[0]

    @property
    def decode(self) -> Engine:
        """The first decode."""
        return self.of_role("decode")[0]

    @property
    def servers(self) -> tuple[Server, ...]:
        """All processes that the lab started itself, router first."""
        routers = () if self.router is None else (self.router.server,)
        return (*routers, *(engine.server for engine in self.engines))

    def halves(
        self,
        input_ids: Sequence[int],
        new_tokens: int = 16,
        *,
        room: int | None = None,
        prefill: Engine | None = None,
        decode: Engine | None = None,
        **more: Any,
    ) -> Halves:
        """One request for both halves, of the first pair unless told otherwise; not sent yet."""
        prefill, decode = prefill or self.prefill, decode or self.decode
        body = generate_body(
            input_ids,
            new_tokens,
            bootstrap_host=launch.HOST,
            bootstrap_port=prefill.bootstrap_port,
            bootstrap_room=next(_ROOMS) if room is None else room,
            **more,
        )
        return Halves(f"{prefill.url}/generate", f"{decode.url}/generate", body)

    def direct(
        self, input_ids: Sequence[int], new_tokens: int = 16, *, timeout: float = 60, **more: Any
    ) -> Pair:
        """Send one request to both halves, as a router does, and wait; `more` as for `halves`."""
        halves = self.halves(input_ids, new_tokens, **more)
        answers = call_all(dict.fromkeys(halves.urls, halves.body), timeout)
        return Pair(answers[halves.prefill_url], answers[halves.decode_url])

    def routed(
        self, input_ids: Sequence[int], new_tokens: int = 16, *, timeout: float = 60, **more: Any
    ) -> Answer:
        """Send one request through the router; `more` goes into its body."""
        if self.router is None:
            raise ValueError(f"this lab has no router: {self.spec.title()}")
        return call(f"{self.router.url}/generate", generate_body(input_ids, new_tokens, **more), timeout)

    def cluster_yaml(self, name: str = "lab") -> str:
        """The deployment as a pdguard cluster file, every engine on the node `local`."""
        lines = [f"cluster: {name}", "engines:"]
        for engine in self.engines:
            port = "" if engine.bootstrap_port is None else f"bootstrap_port: {engine.bootstrap_port}, "
            head = f"name: {engine.name}, role: {engine.role}"
            lines.append(f'  - {{{head}, url: "{engine.url}", {port}node: local}}')
        if self.router is not None:
            head = f'name: {self.router.name}, url: "{self.router.url}"'
            lines += ["routers:", f"  - {{{head}, kind: {self.router.kind}, node: local}}"]
        return "\n".join([*lines, "nodes:", "  local: {transport: local}", ""])

    def write_cluster_yaml(self, folder: Path | None = None) -> Path:
        """Write `cluster.yaml` into `folder` (the run's own by default) and return its path."""
        path = (folder or self.run_dir) / "cluster.yaml"
        path.write_text(self.cluster_yaml(), encoding="utf-8")
        return path


# Even numbers: with several DP ranks a room chooses its rank, and rank 0 always exists.
_ROOMS = itertools.count(time.time_ns() // 2 * 2, 2)


@contextmanager
def running(spec: LabSpec, cache: Cache | None = None, progress: Progress = to_stderr) -> Iterator[Lab]:
    """Run `spec` for the length of the block. One deployment at a time in each cache."""
    cache = cache or Cache.default()
    netns.require_isolated()
    provision = Provision(cache, progress)
    if missing := provision.missing(spec):
        raise ProvisionError(f"not set up: {', '.join(missing)}; run `python -m tests.lab.run setup` first")
    with cache.locked("engines", progress):
        servers: list[Server] = []
        try:
            yield _start(spec, cache, provision.model, progress, servers)
        finally:
            progress(f"stopping {len(servers)} servers")
            stop_all(servers[::-1])


def _start(spec: LabSpec, cache: Cache, model: Path, progress: Progress, servers: list[Server]) -> Lab:
    netns.prepare(spec.highest_port)
    run_dir = cache.new_run_dir()
    (cache.root / "home").mkdir(exist_ok=True)
    started = time.monotonic()
    progress(f"starting {spec.title()}; logs in {run_dir}")

    engines = []
    for role, count in zip(_ROLES, (spec.prefills, spec.decodes), strict=True):
        for index in range(count):
            name = f"{role[0]}{index}"
            command = launch.engine_command(spec, cache, model, role, index)
            env = launch.engine_env(spec, cache, STUBS, role)
            servers.append(Server(name, command, env, run_dir / f"{name}.log"))
            url = f"http://{launch.HOST}:{spec.port(role, index)}"
            bootstrap = spec.bootstrap_port(index) if role == "prefill" else None
            engines.append(Engine(name, role, url, servers[-1], bootstrap))

    deadline = started + spec.start_timeout
    for engine in engines:
        _wait(engine.server, servers, f"{engine.url}/server_info", deadline, progress)
        if engine.bootstrap_port is not None:
            route = f"http://{launch.HOST}:{engine.bootstrap_port}/route?{_ROUTE_QUERY}"
            _wait(engine.server, servers, route, deadline, progress)
    lab = Lab(spec, cache, run_dir, tuple(engines))
    _warm(lab)
    if spec.router != "none":
        router = _start_router(lab, spec.router, spec.router_port, servers, progress)
        lab = replace(lab, router=router)
    progress(f"ready after {time.monotonic() - started:.0f} s")
    return lab


@contextmanager
def another_router(lab: Lab, kind: RouterKind, progress: Progress = to_stderr) -> Iterator[Lab]:
    """The same running engines behind one more router, for the length of the block."""
    servers: list[Server] = []
    try:
        port = lab.spec.router_port + _OTHER_ROUTER
        router = _start_router(lab, kind, port, servers, progress)
        yield replace(lab, router=router)
    finally:
        stop_all(servers)


def _start_router(lab: Lab, kind: RouterKind, port: int, servers: list[Server], progress: Progress) -> Router:
    name = f"r{port - lab.spec.router_port}"
    command = launch.router_command(lab.spec, lab.cache, kind, port, port + _ROUTER_METRICS)
    servers.append(Server(name, command, launch.router_env(lab.cache, kind), lab.run_dir / f"{name}.log"))
    url = f"http://{launch.HOST}:{port}"
    _wait(servers[-1], servers, f"{url}/readiness", time.monotonic() + _ROUTER_TIMEOUT, progress)
    return Router(name, kind, url, f"http://{launch.HOST}:{port + _ROUTER_METRICS}/metrics", servers[-1])


def _wait(server: Server, servers: Sequence[Server], url: str, deadline: float, progress: Progress) -> None:
    """Poll `url` until it answers. Any server's end, or the deadline, is a StartError."""
    say_at = time.monotonic() + _PROGRESS_EVERY

    def fail(who: Server, reason: str) -> StartError:
        return StartError(who.name, reason, who.log, who.tail())

    while not call(url, timeout=5).ok:
        for other in servers:
            if other.exit_code is not None:
                raise fail(other, f"ended with exit code {other.exit_code} while starting")
        now = time.monotonic()
        if now > deadline:
            raise fail(server, f"no answer from {url} in time")
        if now > say_at:
            say_at = now + _PROGRESS_EVERY
            progress(f"waiting for {server.name}")
        time.sleep(_POLL)


def _warm(lab: Lab) -> None:
    """One real request through every pair, so that handshakes are done and nothing is lazy any more."""
    for prefill, decode in itertools.product(lab.of_role("prefill"), lab.of_role("decode")):
        pair = lab.direct(prompt(4), 2, prefill=prefill, decode=decode, timeout=_WARM_TIMEOUT)
        for engine, answer in ((prefill, pair.prefill), (decode, pair.decode)):
            if not answer.ok:
                reason = f"first request failed with status {answer.status}"
                raise StartError(engine.name, reason, engine.server.log, engine.server.tail())
