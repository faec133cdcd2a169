"""What a cluster file says, as frozen and strict models. Nothing here reads a file or a network."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from pdguard.cluster import fields as f
from pdguard.cluster.links import link_faults, nearest
from pdguard.cluster.nodes import Model, Node
from pdguard.errors import InputError

Role = Literal["prefill", "decode"]
RouterKind = Literal["sglang-router", "smg", "sgl-router", "mini-lb", "other"]


class Auth(Model):
    """Where the API key is found. The key itself never stands in a cluster file."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["api_key_env"]}, {"required": ["api_key_file"]}]}
    )

    api_key_env: f.EnvName | None = Field(
        default=None, description="Environment variable that holds the API key."
    )
    api_key_file: f.PathText | None = Field(
        default=None,
        description="File that holds the API key and nothing else; relative to the cluster file.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if self.api_key_env is None and self.api_key_file is None:
            raise f.refuse("names no source of the key", "api_key_env or api_key_file")
        if self.api_key_env is not None and self.api_key_file is not None:
            raise f.refuse(
                "names two sources of the key", "api_key_env or api_key_file, not both", "api_key_file"
            )
        return self


class Tls(Model):
    """How an https server is checked, and the certificate shown to it."""

    model_config = ConfigDict(
        json_schema_extra={
            "dependentRequired": {
                "client_cert_file": ["client_key_file"],
                "client_key_file": ["client_cert_file"],
            }
        }
    )

    ca_file: f.PathText | None = Field(
        default=None, description="Certificates to trust, PEM; relative to the cluster file."
    )
    insecure: bool = Field(default=False, description="Accept any certificate. For tests only.")
    client_cert_file: f.PathText | None = Field(default=None, description="Client certificate, PEM.")
    client_key_file: f.PathText | None = Field(
        default=None, description="Key of the client certificate, PEM."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise f.refuse("has half of a client certificate", "both client_cert_file and client_key_file")
        if self.insecure and self.ca_file is not None:
            raise f.refuse("is insecure and names a CA", "ca_file, or insecure: true, not both", "insecure")
        return self


_DECODE_HAS_NO_BOOTSTRAP: dict[str, Any] = {
    "if": {"properties": {"role": {"const": "decode"}}, "required": ["role"]},
    "then": {"properties": {"bootstrap_port": False, "bootstrap_host": False}},
}


class Engine(Model):
    """One SGLang server of a PD deployment."""

    model_config = ConfigDict(json_schema_extra=_DECODE_HAS_NO_BOOTSTRAP)

    name: f.Name = Field(description="Name in reports; unique among engines and routers.")
    role: Role = Field(description="Half of the deployment that the server is.")
    url: f.Url = Field(description="Where its HTTP port answers: http(s)://host[:port][/prefix].")
    bootstrap_port: f.Port | None = Field(
        default=None, description="--disaggregation-bootstrap-port; prefill only."
    )
    bootstrap_host: f.SshHost | None = Field(
        default=None,
        description="Host at which decodes reach its bootstrap server, that of url if absent; prefill only.",
    )
    node: f.Name | None = Field(
        default=None, description="Name under `nodes` of the machine or container it runs on."
    )
    followers: Annotated[tuple[f.Name, ...], Field(strict=False)] = Field(
        default=(), description="Names of the other nodes of a multi-node engine."
    )
    auth: Auth | None = Field(default=None, description="Instead of the cluster's auth.")
    tls: Tls | None = Field(default=None, description="TLS settings for its URL.")
    metrics_instance: f.LabelValue | None = Field(
        default=None, description="Its `instance` label in Prometheus, where it is not host:port of `url`."
    )

    @field_validator("bootstrap_port", "bootstrap_host", mode="after")
    @classmethod
    def _prefill_only(cls, value: int | str | None, info: ValidationInfo) -> int | str | None:
        if value is not None and info.data.get("role") == "decode":
            raise f.refuse("is set on a decode", f"{info.field_name} on prefills only")
        return value

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """Every node that the engine runs on, its first node first."""
        return (*(() if self.node is None else (self.node,)), *self.followers)


class Router(Model):
    """One router in front of prefills and decodes."""

    name: f.Name = Field(description="Name in reports; unique among engines and routers.")
    url: f.Url = Field(description="Where it answers clients: http(s)://host[:port][/prefix].")
    kind: RouterKind = Field(description="Which router it is; `other` if none of these.")
    engines: Annotated[tuple[f.Name, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="Names of the engines behind it; all of them if absent."
    )
    node: f.Name | None = Field(
        default=None, description="Name under `nodes` of the machine or container it runs on."
    )
    version: f.PepVersion | None = Field(
        default=None, description="Version of its package, where it cannot be read."
    )
    built: f.Day | None = Field(
        default=None, description="Build date of the router, YYYY-MM-DD, where no version tells."
    )
    tries: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="How often it sends a request that fails, the first time included."
    )
    auth: Auth | None = Field(default=None, description="Instead of the cluster's auth.")
    tls: Tls | None = Field(default=None, description="TLS settings for its URL.")


class Prometheus(Model):
    """The Prometheus that scrapes the engines. It has an auth of its own and never sees the cluster's key."""

    url: f.Url = Field(description="Base URL; /api/v1/query is added.")
    headers_env: dict[f.HeaderName, f.EnvName] = Field(
        default={}, description="HTTP headers, each by the environment variable that holds its value."
    )
    auth: Auth | None = Field(default=None, description="Bearer token, by variable or file.")
    tls: Tls | None = Field(default=None, description="TLS settings for its URL.")
    selector: dict[f.LabelName, f.LabelValue] = Field(
        default={}, description="Labels that every query is narrowed to, such as {cluster: prod}."
    )


class Waiver(Model):
    """A finding that the operator accepts until a date."""

    check: f.CheckId = Field(description="Id of the check.")
    target: f.TargetGlob = Field(default="*", description="Name of the target, or a glob.")
    reason: f.Sentence = Field(description="Why it is accepted, in words.")
    expires: f.Day = Field(description="Last day on which the waiver holds, YYYY-MM-DD.")


_Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Policy(Model):
    """Numbers that checks and collectors use."""

    t_hold_min: _Seconds = Field(default=60.0, description="Smallest advised T_hold in seconds.")
    t_hold_max: _Seconds = Field(default=120.0, description="Largest advised T_hold in seconds.")
    extreme_context: int = Field(
        default=131_072, ge=1, le=10**12, description="Prompt length, in tokens, that calls for a batch cap."
    )
    timeout_ratio: float = Field(
        default=0.05, gt=0, le=1, description="Share of holds that may end by timeout."
    )
    min_holds: int = Field(
        default=20, ge=1, le=10**12, description="Holds needed before their ratio is judged."
    )
    request_timeout: _Seconds = Field(default=5.0, description="Seconds that one request may take.")
    run_timeout: _Seconds = Field(default=60.0, description="Seconds that a whole run may take.")
    concurrency: int = Field(
        default=64, ge=1, le=1024, description="Requests and node scripts under way at once."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for low, high in (("t_hold_min", "t_hold_max"), ("request_timeout", "run_timeout")):
            if getattr(self, low) > getattr(self, high):
                blamed = high if high in self.model_fields_set else low
                least = f"{low} at most {high} (here {getattr(self, low):g} and {getattr(self, high):g})"
                raise f.refuse(f"has {low} above {high}", least, blamed)
        return self


class Cluster(Model):
    """Engines, routers and nodes of one PD deployment, and what pdguard may use to look at them."""

    cluster: f.Name = Field(description="Name of the deployment in reports.")
    engines: Annotated[tuple[Engine, ...], Field(strict=False, min_length=1)] = Field(
        description="Every prefill and decode engine."
    )
    routers: Annotated[tuple[Router, ...], Field(strict=False)] = Field(
        default=(), description="Routers in front of them."
    )
    nodes: dict[f.Name, Node] = Field(
        default={}, description="Machines and containers by name, and how to reach each."
    )
    auth: Auth | None = Field(
        default=None, description="API key of engines and routers that name none of their own."
    )
    prometheus: Prometheus | None = Field(default=None, description="Where release outcomes can be read.")
    waivers: Annotated[tuple[Waiver, ...], Field(strict=False)] = Field(
        default=(), description="Findings accepted for a time."
    )
    policy: Policy = Field(default=Policy(), description="Numbers that checks and collectors use.")

    _base_dir: Path = PrivateAttr(default_factory=Path)

    @model_validator(mode="after")
    def _linked(self) -> Self:
        for fault in link_faults(self.model_dump(include={"engines", "routers", "nodes"})):
            raise f.refuse(fault.what, fault.expected, "")
        return self

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths of the file start from."""
        return self._base_dir

    def placed_in(self, folder: Path) -> Self:
        """The same cluster, with relative paths starting from `folder`."""
        copy = self.model_copy()
        copy._base_dir = folder
        return copy

    @cached_property
    def _by_name(self) -> dict[str, Engine]:
        return {engine.name: engine for engine in self.engines}

    def engine(self, name: str) -> Engine:
        """The engine of that name. An InputError suggests the nearest when there is none."""
        found = self._by_name.get(name)
        if found is None:
            near = nearest(name, self._by_name)
            raise InputError(
                "there is no engine of that name",
                expected="an engine of the cluster file",
                found=name[:64],
                todo=f"Did you mean {near}?" if near else "",
            )
        return found

    @property
    def prefills(self) -> tuple[Engine, ...]:
        """The prefill engines, in the order of the file."""
        return tuple(engine for engine in self.engines if engine.role == "prefill")

    @property
    def decodes(self) -> tuple[Engine, ...]:
        """The decode engines, in the order of the file."""
        return tuple(engine for engine in self.engines if engine.role == "decode")

    @property
    def servers(self) -> tuple[Engine | Router, ...]:
        """Engines and routers, in the order of the file."""
        return (*self.engines, *self.routers)

    def auth_for(self, server: Engine | Router) -> Auth | None:
        """The server's own auth, or the cluster's. Prometheus never gets the cluster's."""
        return server.auth or self.auth

    def routers_for(self, engine: Engine) -> tuple[Router, ...]:
        """The routers that front the engine; one that lists no engines fronts them all."""
        return tuple(
            router for router in self.routers if router.engines is None or engine.name in router.engines
        )

    def engines_on(self, node: str) -> tuple[Engine, ...]:
        """The engines that run on a node, as their first node or as a follower."""
        return tuple(engine for engine in self.engines if node in engine.all_nodes)
