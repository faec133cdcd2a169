"""Facts from the processes of a node: what the node script sends, checked, and turned into facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdguard.errors import TransportError
from pdguard.facts.argv import Flags, merge_config, parse_argv
from pdguard.facts.environment import ENV_FACTS, EnvReading, parse_environment
from pdguard.facts.interface import FactSet, Grade, Value
from pdguard.facts.source import EngineSource, parse_source
from pdguard.facts.versions import EngineVersion
from pdguard.node.bundle import script
from pdguard.node.names import ENV_NAMES
from pdguard.transport.interface import Json, Transport

SOURCE = "process"
PROCESS_FACTS = ("pid", "started", "process_flags", "config_file", "titles")
ALIKE_FACTS = (
    "hold_setting",
    "t_hold",
    "t_hold_kind",
    "bootstrap_timeout",
    "waiting_timeout",
    "transfer_timeout",
    "batch_cap",
    "batch_cap_raw",
    "mori_timeout_ms",
    "tree_core",
    "test_injection",
)
"""Settings that every process of one engine must share."""

_FLAG_FACTS = {
    "context_length": "context_flag",
    "max_total_tokens": "max_total_tokens_flag",
    "num_reserved_decode_tokens": "reserved_decode_tokens",
    "disaggregation_mode": "start_role",
}
"""Arguments that are facts as they stand, wherever they were given."""

_LOST = ("none", "other", "gone")
"""Statuses that say that the engine is not there; the others leave it open."""

_ROOT = "run pdguard as root, or as the user of the engine"
_HOW = {
    "unreadable": _ROOT,
    "other": "the port in url: must be the engine's own on that node, not a proxy's or a container mapping's",
    "none": "check node: and the port in url:; the engine's own port on that node is looked up",
}
_ENV_WHY = {
    "all-nul": (
        "every process of the engine has overwritten its environment",
        "start the engine with SPT_NOENV=1",
    ),
    "empty": ("the environment of the process is empty, which no engine starts with", _ROOT),
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Argv(_Strict):
    state: str = Field(max_length=40)
    program: str = Field("", max_length=80)
    args: list[str] = Field(default_factory=list, max_length=8192)


class _Config(_Strict):
    how: str = Field(pattern="^(none|read|ignored|unreadable)$")
    rows: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list, max_length=8192
    )


class _Env(_Strict):
    state: str = Field(pattern="^(read|all-nul|empty|unreadable)$")
    why: str = Field("", max_length=200)
    values: dict[str, str] = Field(default_factory=dict, max_length=200)


class EngineProcess(_Strict):
    """One process of an engine, as the node describes it."""

    pid: int = Field(ge=1)
    started: int | None = Field(None, ge=0)
    titles: list[str] = Field(default_factory=list, max_length=2048)
    argv: _Argv = _Argv(state="not understood", program="")
    config: _Config = _Config(how="none")
    env: _Env = _Env(state="unreadable", why="")

    def flags(self) -> Flags:
        """The arguments, those of a configuration file included."""
        rows = [(name, value) for name, value in self.config.rows]
        return parse_argv(merge_config(self.argv.args, rows) if self.config.how == "read" else self.argv.args)

    def environment(self, version: EngineVersion | None) -> EnvReading:
        """The environment as this version reads it."""
        if self.env.state != "read":
            return parse_environment(None, version)
        return parse_environment({k: v for k, v in self.env.values.items() if k in ENV_NAMES}, version)


class RouterProcess(_Strict):
    """The process of a router, as the node describes it."""

    pid: int = Field(ge=1)
    started: int | None = Field(None, ge=0)
    kind: str = Field("other", pattern="^(sglang-router|smg|sgl-router|mini-lb|other)$")
    version: str | None = Field(None, pattern=r"^[0-9A-Za-z.+!_\-]{1,64}$")
    built: str | None = Field(None, pattern=r"^20\d\d-[01]\d-[0-3]\d$")


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for one name: its status, the reason, the process, and its source where asked for."""

    status: str
    why: str = ""
    engine: EngineProcess | None = None
    router: RouterProcess | None = None
    source: EngineSource | None = None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The answer of one node; `problem` says why there is none."""

    engines: Mapping[str, Found] = field(default_factory=dict)
    routers: Mapping[str, Found] = field(default_factory=dict)
    problem: TransportError | None = None


def collect_processes(transport: Transport, request: Mapping[str, Json], timeout: float) -> NodeReading:
    """Run the node script for `request` (engines, routers) and check every part of the answer.

    A node that cannot be read, or that answers nonsense, costs its own facts and nothing else.
    """
    try:
        answer = transport.run_script(script(), {**request, "seconds": max(1.0, timeout * 0.8)}, timeout)
    except TransportError as error:
        return NodeReading(problem=error)
    if not isinstance(answer, Mapping) or answer.get("schema") != "pdguard.node/1":
        return NodeReading(
            problem=TransportError("the node's answer makes no sense", expected="pdguard.node/1")
        )
    return NodeReading(
        engines=_items(answer, request, "engines", EngineProcess),
        routers=_items(answer, request, "routers", RouterProcess),
    )


def _items(
    answer: Mapping[str, Any], request: Mapping[str, Json], kind: str, model: type[_Strict]
) -> dict[str, Found]:
    asked = [item["name"] for item in _list(request.get(kind)) if isinstance(item, Mapping)]
    found = {name: Found("failed", "the node's answer does not mention it") for name in asked}
    source = request.get("source")
    watched = _list(source.get("files")) if isinstance(source, Mapping) else None
    for item in _list(answer.get(kind)):
        if (
            not isinstance(item, Mapping)
            or not isinstance(item.get("name"), str)
            or item["name"] not in asked
        ):
            continue
        try:
            process = model.model_validate(item["process"]) if "process" in item else None
        except (ValidationError, RecursionError):
            found[item["name"]] = Found("failed", "the node's answer about it makes no sense")
            continue
        status, why = (str(item.get(key) or "")[:200] for key in ("status", "why"))
        if process is None and status == "found":
            status, why = "failed", "the node's answer about it makes no sense"
        found[item["name"]] = Found(
            status,
            why,
            engine=process if isinstance(process, EngineProcess) else None,
            router=process if isinstance(process, RouterProcess) else None,
            source=None if watched is None or process is None else parse_source(item.get("source"), watched),
        )
    return found


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def apply_engine(facts: FactSet, found: Found | None, version: EngineVersion | None) -> None:
    """Add what the process of an engine tells, and the reason for what it does not."""
    process = None if found is None else found.engine
    if process is None:
        why = "its node was not read" if found is None else (found.why or found.status)
        how = _HOW.get("" if found is None else found.status, "")
        for name in (*PROCESS_FACTS, "env_read", *ENV_FACTS):
            facts.miss(name, why, how)
        return
    where = f"/proc/{process.pid}"
    _add(facts, "pid", process.pid, where)
    if process.started is None:
        facts.miss("started", "the node did not tell its boot time")
    else:
        _add(facts, "started", process.started, f"{where}/stat")
    _add(facts, "titles", tuple(sorted(t for t in set(process.titles) if len(t) < 100)), f"{where}/cmdline")
    if process.argv.state == "read":
        _apply_flags(facts, process, f"{where}/cmdline")
    else:
        for name in ("process_flags", "config_file"):
            facts.miss(name, f"the argument list is {process.argv.state}")
    _apply_environment(facts, process, version, f"{where}/environ")


def _apply_flags(facts: FactSet, process: EngineProcess, where: str) -> None:
    flags = process.flags()
    _add(facts, "process_flags", flags.shown(), where)
    _add(facts, "config_file", process.config.how, f"{where} --config")
    if process.config.how == "unreadable":
        return  # the file may say more than the command line
    for name, fact in _FLAG_FACTS.items():
        if name in flags.values:
            _add(facts, fact, flags.values[name], where)


def _apply_environment(
    facts: FactSet, process: EngineProcess, version: EngineVersion | None, where: str
) -> None:
    if process.env.state == "read":
        _add(facts, "env_read", True, where)
        process.environment(version).put(facts, SOURCE, where)
        return
    _add(facts, "env_read", False, where)
    why, how = _ENV_WHY.get(process.env.state, (f"the environment cannot be read: {process.env.why}", _ROOT))
    for name in ENV_FACTS:
        facts.miss(name, why, how)


def apply_followers(
    facts: FactSet, leader: Found | None, followers: Mapping[str, Found | None], version: EngineVersion | None
) -> None:
    """Add which nodes (the keys) run followers of an engine, and whether they are set as their leader is."""
    running = {node: f.engine for node, f in followers.items() if f is not None and f.engine is not None}
    lost = sorted(set(followers) - set(running))
    if followers and not running:
        facts.miss("followers", f"no follower was found on {', '.join(lost)}")
    else:
        _add(facts, "followers", tuple(sorted(running)), "--node-rank, --dist-init-addr")
    first = None if leader is None or leader.engine is None else _safety(leader.engine, version)
    others = [_safety(process, version) for process in running.values()]
    if lost or first is None or any(other is None for other in others):
        facts.miss("followers_alike", "the environment of the leader or of a follower could not be read")
    elif others:
        _add(facts, "followers_alike", all(other == first for other in others), "/proc/PID/environ")


def _safety(process: EngineProcess, version: EngineVersion | None) -> dict[str, Value] | None:
    """The settings to compare, or None where the environment was not read."""
    if process.env.state != "read":
        return None
    known = process.environment(version).facts
    raw = {name: value for name, value in process.env.values.items() if name in ENV_NAMES}
    return {name: known[name] if name in known else str(sorted(raw.items())) for name in ALIKE_FACTS}


def apply_router(facts: FactSet, found: Found | None) -> None:
    """Add what the process of a router tells: the version and build date of its package."""
    process = None if found is None else found.router
    if process is None:
        why = "its node was not read" if found is None else (found.why or found.status)
        facts.miss("version", why)
        facts.miss("built", why)
        return
    for name, value in (("version", process.version), ("built", process.built)):
        if value is None:
            facts.miss(name, "its package could not be told from the process")
        else:
            _add(facts, name, value, f"/proc/{process.pid}/maps {process.kind}")


def apply_node(facts: FactSet, reading: NodeReading, transport: str) -> None:
    """Add what is known about the node itself."""
    _add(facts, "transport", transport, "cluster.yaml")
    _add(facts, "reachable", reading.problem is None, "node script")
    if reading.problem is not None:
        for name in ("engines", "engines_lost"):
            facts.miss(name, reading.problem.what, reading.problem.todo)
        return
    running = sum(found.engine is not None for found in reading.engines.values())
    lost = sorted(name for name, found in reading.engines.items() if found.status in _LOST)
    _add(facts, "engines", running, "node script")
    if lost or running == len(reading.engines):
        _add(facts, "engines_lost", tuple(lost), "node script")
    else:
        facts.miss("engines_lost", "not every engine could be looked for", _ROOT)


def _add(facts: FactSet, name: str, value: Value, where: str) -> None:
    facts.add(name, value, Grade.CONFIGURED, SOURCE, where)
