"""How each node is reached, one model a transport, and the base of all models of a cluster file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pdguard.cluster import fields as f


class Model(BaseModel):
    """Frozen, strict, no unknown keys, and errors that never show a value."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


class _NodeBase(Model):
    python: f.Command | None = Field(
        default=None, description="Python that runs the engine; found by itself if absent."
    )


class LocalNode(_NodeBase):
    """This machine."""

    transport: Literal["local"]


class SshNode(_NodeBase):
    """A machine reached by the operator's own ssh."""

    transport: Literal["ssh"]
    host: f.SshHost = Field(description="Host name, address, or Host of the ssh configuration.")
    user: f.UserName | None = None
    port: f.Port | None = None
    config: f.PathText | None = Field(
        default=None, description="ssh configuration file; relative to the cluster file."
    )


class KubectlNode(_NodeBase):
    """A pod reached by `kubectl exec`."""

    transport: Literal["kubectl"]
    pod: f.KubeName = Field(description="Name of the pod.")
    namespace: f.KubeName | None = None
    container: f.KubeName | None = Field(
        default=None, description="Container of the pod; kubectl's default if absent."
    )
    context: f.KubeContext | None = Field(
        default=None, description="kubectl context; the current one if absent."
    )


class DockerNode(_NodeBase):
    """A container reached by `docker exec`."""

    transport: Literal["docker"]
    container: f.ContainerName = Field(description="Name or id of the container.")
    host: f.DockerHost | None = Field(
        default=None, description="Docker daemon, as in DOCKER_HOST; the local one if absent."
    )


Node = Annotated[LocalNode | SshNode | KubectlNode | DockerNode, Field(discriminator="transport")]
