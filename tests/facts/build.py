"""Engines made of facts, for tests of what follows from them."""

from __future__ import annotations

from pdguard.facts.derived import derive_engine
from pdguard.facts.interface import Grade, Subject, Value

DEFAULTS: dict[str, Value] = {
    "backend": "mooncake",
    "context_length": 4096,
    "admission_limit": 1018,
    "pool": 1024,
    "pools": (1024,),
    "reserved_decode_tokens": 16,
    "tp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "page_size": 1,
    "kv_cache_dtype": "auto",
    "speculative": "none",
    "speculative_settings": (),
    "checksum": False,
    "metrics_on": True,
    "auto_truncate": False,
    "dp_attention": False,
}


def engine(role: str, version: str = "0.5.22", **facts: Value | None) -> Subject:
    """An engine with a real shape; a fact given as None is missing, `name` is its name."""
    subject = Subject("engine", str(facts.pop("name", f"{role[0]}0")))
    given: dict[str, Value | None] = {**DEFAULTS, "role": role, **facts}
    subject.facts.add("version", version, Grade.CLAIMED, "http", "/server_info version")
    for key, value in given.items():
        if value is not None:
            subject.facts.add(key, value, Grade.CONFIGURED, "http", key)
    derive_engine(subject.facts)
    return subject


def sized(
    role: str, pool: int, version: str = "0.5.22", context: int = 4096, **facts: Value | None
) -> Subject:
    """An engine whose limits follow from its pool and context as in the real one."""
    limit = min(context - 1, pool - 1) - 5
    sizes: dict[str, Value | None] = {"pool": pool, "pools": (pool,), "admission_limit": limit}
    return engine(role, version, **{"context_length": context, **sizes, **facts})
