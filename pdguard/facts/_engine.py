"""The questions put to one engine, in order, and where their answers go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pdguard.facts import _server_info as info_facts
from pdguard.facts import _sizes, bootstrap, metrics
from pdguard.facts._fetch import BOOTSTRAP_ROUTE, PLAIN, Answer, Failed, Fetcher, Tls, bootstrap_base
from pdguard.facts._read import ABSENT, Bad, describe, parse_object
from pdguard.facts.argv import launch_flags
from pdguard.facts.environment import parse_environment
from pdguard.facts.interface import FactSet, Grade
from pdguard.facts.versions import parse_version
from pdguard.node.names import ENV_NAMES

MAX_COMMAND = 256 * 1024
MAX_VARIABLE = 4096

ENGINE_FACTS = (
    *(row.fact for row in info_facts.ROWS),
    *(
        "reachable",
        "trouble",
        "role",
        "version",
        "version_kind",
        "frontend",
        "launch_flags",
        "context_length",
        "pool",
        "pools",
    ),
    *(
        "rank_limit",
        "swa_pool",
        "reserved_tokens",
        "speculative",
        "speculative_settings",
        "checksum_supported",
    ),
    *("retraction_backup", "keys_readable", *bootstrap.FACTS, *metrics.FACTS),
)
"""Every fact that this collector answers for: each is known afterwards, or missing with a reason."""


class EngineLike(Protocol):
    """What is needed of an engine in cluster.yaml."""

    @property
    def name(self) -> str:
        """Name in reports."""

    @property
    def role(self) -> str:
        """Declared role."""

    @property
    def url(self) -> str:
        """Base URL."""

    @property
    def bootstrap_port(self) -> int | None:
        """Port of a prefill's bootstrap server."""


@dataclass(slots=True)
class Run:
    """What every question of one run shares; keys and TLS settings are by name."""

    fetcher: Fetcher
    keys: Mapping[str, str]
    tls: Mapping[str, Tls]

    async def get(self, name: str, url: str, path: str) -> Answer | Failed:
        """The body at `path`."""
        return await self.fetcher.get(url, path, key=self.keys.get(name), tls=self.tls.get(name, PLAIN))

    async def object(self, name: str, url: str, path: str) -> dict[str, Any] | Failed:
        """The JSON object at `path`, or why there is none."""
        answer = await self.get(name, url, path)
        if isinstance(answer, Failed):
            return answer
        made = parse_object(answer.body)
        return Failed(made.reason, status=200) if isinstance(made, Bad) else made


async def ask_engine(run: Run, engine: EngineLike, facts: FactSet) -> None:
    """Add every fact that the engine tells. What it does not tell is missing, with the reason."""
    name, url = engine.name, engine.url
    path = info_facts.PATH
    info = await run.object(name, url, path)
    if isinstance(info, Failed) and info.status == 404:
        path = "/get_server_info"
        info = await run.object(name, url, path)
    if not isinstance(info, Failed) and not info_facts.KNOWN_KEYS & info.keys():
        info = Failed("expected an engine's settings, an object with none of them came", status=200)
    if isinstance(info, Failed):
        facts.add("reachable", False, Grade.OBSERVED, "http", path, shown=info.reason)
        facts.add("trouble", info.reason, Grade.OBSERVED, "http", path)
        if info.status and engine.role == "prefill":
            await _bootstrap(run, engine, facts)
        for fact in ENGINE_FACTS:
            facts.miss(fact, f"{path}: {info.reason}", info.how)
        return
    facts.add("reachable", True, Grade.OBSERVED, "http", path, shown="HTTP 200")
    facts.add("trouble", "none", Grade.OBSERVED, "http", path, shown="HTTP 200")
    states = _sizes.states_of(info)
    info_facts.read_flags(facts, info, states, keyed=name in run.keys)
    sizes = _sizes.read_states(info, states)
    role_told = _sizes.read_role(facts, info, states)
    _launch_flags(facts, info.get("launch_command", ABSENT))
    _environment(facts, states)
    del info, states
    await _models(run, name, url, facts)
    if _sizes.needs_loads(facts, sizes):
        loads = await run.object(name, url, "/v1/loads")
        if isinstance(loads, Failed):
            sizes.why = sizes.why or f"/v1/loads: {loads.reason}"
        else:
            _sizes.read_loads(sizes, loads)
    _sizes.settle_pools(facts, sizes)
    if not role_told:
        model = await run.object(name, url, "/model_info")
        if isinstance(model, Failed):
            facts.miss("role", f"/model_info: {model.reason}", model.how)
        else:
            _sizes.role_from_model_info(facts, model)
    await _bootstrap(run, engine, facts)
    await _metrics(run, name, url, facts)


def _launch_flags(facts: FactSet, command: object) -> None:
    """The harmless flags of the launch command; of the rest only the number is kept."""
    ref = f"{info_facts.PATH} launch_command"
    if command is ABSENT:
        facts.miss("launch_flags", f"{info_facts.PATH} has no launch_command, which came with 0.5.20")
    elif not isinstance(command, str):
        facts.miss("launch_flags", f"{ref}: expected a string, {describe(command)} came")
    elif len(command) > MAX_COMMAND:
        facts.miss("launch_flags", f"{ref}: expected a command line, far too long a string came")
    else:
        facts.add("launch_flags", launch_flags(command), Grade.CONFIGURED, "http", ref)


def _environment(facts: FactSet, states: list[dict[str, Any]]) -> None:
    """The variables an engine shows of itself when started with SGLANG_EXPOSE_OWN_ENV_VARS."""
    shown = states[0].get("env_vars") if states else None
    if not isinstance(shown, dict) or any(state.get("env_vars") != shown for state in states):
        return  # not shown, or the ranks do not agree
    if "SGLANG_EXPOSE_OWN_ENV_VARS" not in shown:
        return  # an engine that shows its variables was given this one
    known: dict[str, str] = {}
    for variable in ENV_NAMES & shown.keys():
        value = shown[variable]
        if not isinstance(value, str) or len(value) > MAX_VARIABLE:
            return  # not what an engine answers, so neither is the absence of the others
        known[variable] = value
    version = parse_version(facts.text("version") or "")
    where = f"{info_facts.PATH} internal_states[0].env_vars"
    parse_environment(known, version, registered_only=True).put(facts, "http", where)


async def _models(run: Run, name: str, url: str, facts: FactSet) -> None:
    models = await run.object(name, url, "/v1/models")
    if isinstance(models, Failed):
        reason = f"/v1/models: {models.reason}"
        _sizes.context_from_flag(facts)
        facts.miss("context_length", reason, models.how)
        return
    _sizes.read_models(facts, models)
    _sizes.context_from_flag(facts)


async def _bootstrap(run: Run, engine: EngineLike, facts: FactSet) -> None:
    role = facts.text("role") or engine.role
    if role != "prefill":
        bootstrap.miss_all(facts, "only a prefill has a bootstrap server", "")
    elif engine.bootstrap_port is None:
        bootstrap.miss_all(facts, "cluster.yaml gives it no bootstrap_port")
    else:
        base = bootstrap_base(engine.url, engine.bootstrap_port)
        bootstrap.read_route(facts, await run.fetcher.get(base, BOOTSTRAP_ROUTE))


async def _metrics(run: Run, name: str, url: str, facts: FactSet) -> None:
    switched_on = facts.flag("metrics_on")
    if switched_on is not True:
        off = (
            "metrics are off on this engine"
            if switched_on is False
            else "whether metrics are on is not known"
        )
        reason, how = off, metrics.HOW
    else:
        text = metrics.LineFilter()
        answer = await run.fetcher.get(url, metrics.PATH, tls=run.tls.get(name, PLAIN), sink=text.feed)
        if isinstance(answer, Answer):
            text.close()
            metrics.read_metrics(facts, text)
            return
        reason, how = f"{metrics.PATH}: {answer.reason}", answer.how
    for fact in metrics.FACTS:
        facts.miss(fact, reason, how)
