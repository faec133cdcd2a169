"""The JSON Schema of a cluster file, for editors, generated from the models."""

from __future__ import annotations

from typing import Any

from pdguard.cluster.model import Cluster

SCHEMA_ID = "pdguard.cluster/1"


def cluster_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a cluster file.

    It holds what can be said of one field or one mapping. References, names used twice and the order of two
    numbers are left to the loader.
    """
    schema = _tidied(Cluster.model_json_schema(mode="validation"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "pdguard cluster file",
    }


def _tidied(node: Any) -> Any:
    """Without null branches (a key must have a value) and without OpenAPI's discriminator."""
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _tidied(value) for key, value in node.items() if key != "discriminator"}
    if "patternProperties" in out:
        # pydantic means its keys to be checked, but leaves other keys open.
        out["additionalProperties"] = False
    branches = out.get("anyOf")
    if isinstance(branches, list) and {"type": "null"} in branches:
        out.pop("anyOf")
        if out.get("default", ...) is None:
            out.pop("default")
        (kept,) = [branch for branch in branches if branch != {"type": "null"}]
        out = {**kept, **out}
    return out
