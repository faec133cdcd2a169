"""Stand-ins for what surrounds the code under exercise, and the configuration of a world of one rank."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from pdguard.exercise.engine import boot

Log = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Stand:
    """Has every attribute, can be called, is false and empty, and writes down what was called."""

    def __init__(self, _name: str, _log: Log, **known: Any) -> None:
        self.__dict__.update(known, _name=_name, _log=_log)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Stand(f"{self._name}.{name}", self._log)
        self.__dict__[name] = value
        return value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Note the call."""
        self._log.append((self._name, arguments, named))
        return Stand(f"{self._name}()", self._log)

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, _item: object) -> bool:
        return False

    def __lt__(self, _other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_what: object) -> None:
        return None


class Present(Stand):
    """A stand-in that is true."""

    def __bool__(self) -> bool:
        return True


def calls(log: Log, ending: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls of everything whose name ends so."""
    return [(arguments, named) for name, arguments, named in log if name.endswith(ending)]


def with_methods_of(owner: type, name: str, log: Log, **known: Any) -> Any:
    """A stand-in with the real methods of `owner`: only its data and its surroundings are made up."""

    class Standing(Present):
        def __getattr__(self, attribute: str) -> Any:
            found = inspect.getattr_static(owner, attribute, None)
            if isinstance(found, FunctionType):
                return MethodType(found, self)
            if isinstance(found, (staticmethod, classmethod)):
                return getattr(owner, attribute)
            return super().__getattr__(attribute)

    return Standing(name, log, **known)


def bare(owner: type, log: Log, **known: Any) -> Any:
    """An instance of `owner` that never ran `__init__`; data that was not given is a stand-in."""

    def missing(self: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = Stand(f"{owner.__name__}.{attribute}", log)
        self.__dict__[attribute] = value
        return value

    made: Any = object.__new__(type(owner.__name__, (owner,), {"__getattr__": missing}))
    made.__dict__.update(known)
    return made


def accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of `offered` that `function` takes, by name."""
    return {name: offered[name] for name in inspect.signature(function).parameters if name in offered}


class _Group(Present):
    """A process group with one member."""

    world_size = 1
    rank_in_group = 0


class Namespace:
    """The engine's configuration: given values, then the engine's own defaults, then a world of one rank."""

    def __init__(self, given: dict[str, Any], defaults: dict[str, Any]) -> None:
        self.__dict__.update(_given=given, _defaults=defaults)

    def __getattr__(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        if name.endswith("_group"):
            return _Group(name, [])
        if name in self._defaults and self._defaults[name] is not None:
            return self._defaults[name]
        for ending, value in (("_size", 1), ("_rank", 0), ("_ranks", 1)):
            if name.endswith(ending):
                return value
        if name.startswith(("enable_", "disable_", "use_")):
            return False
        if name in self._defaults:
            return None
        raise AttributeError(name)


GIVEN: dict[str, Any] = {
    "device": "cpu",
    "host": "10.77.0.1",
    "port": 30000,
    "disaggregation_bootstrap_port": 8998,
    "dist_init_addr": None,
    "nnodes": 1,
    "load_balance_method": "follow_bootstrap_room",
    "attn_tp_size": 1,
    "attn_tp_rank": 0,
    "tp_size": 1,
    "tp_rank": 0,
}
_GETTERS = (
    *("get_parallel", "get_serving", "get_disagg", "get_observability", "get_schedule", "get_memory"),
    *("get_spec", "get_device", "get_model", "get_exec", "get_lora", "get_mm", "get_server_args"),
)
_WIDTHS = {
    "get_attention_dp_rank": 0,
    "get_attention_dp_size": 1,
    "get_attention_cp_rank": 0,
    "get_attention_cp_size": 1,
    "get_pp_group": _Group("pp_group", []),
    "get_tp_group": _Group("tp_group", []),
    "get_world_group": _Group("world_group", []),
}
"""What older engines ask of their process groups."""


def configure(**given: Any) -> Namespace:
    """Give every module of the engine one made-up configuration, instead of a parsed command line."""
    server_args = boot.member("server_args", "ServerArgs")
    defaults = _defaults(server_args)
    namespace = Namespace({**GIVEN, **given}, defaults)
    replace_everywhere(dict.fromkeys(_GETTERS, lambda: namespace))
    replace_everywhere({name: lambda value=value: value for name, value in _WIDTHS.items()})
    boot.note("configuration: one rank on a CPU, the engine's own defaults otherwise")
    return namespace


def replace_everywhere(new: dict[str, Any]) -> None:
    """Bind names anew in every loaded module of the engine that has them."""
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith("sglang."):
            continue
        for attribute, value in new.items():
            if attribute in module.__dict__:
                module.__dict__[attribute] = value


def _defaults(server_args: Any) -> dict[str, Any]:
    fields = getattr(server_args, "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain(field.default) for name, field in fields.items()}
    names = getattr(server_args, "__struct_fields__", ())
    values = getattr(server_args, "__struct_defaults__", ())
    return dict.fromkeys(names) | dict(
        zip(names[len(names) - len(values) :], map(_plain, values), strict=True)
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else None


def one_rank() -> None:
    """Collectives of a world of one: the tensor that goes in comes out."""
    distributed: Any = importlib.import_module("torch.distributed")
    distributed.all_reduce = lambda *_arguments, **_named: None
    distributed.get_world_size = lambda *_arguments, **_named: 1
    distributed.get_rank = lambda *_arguments, **_named: 0
    distributed.barrier = lambda *_arguments, **_named: None
    boot.note("torch.distributed: a world of one rank")


def switch(hold: str, seconds: float) -> None:
    """Set, or leave to the engine's default, the hold of decode; `hold` is on, off or default."""
    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    os.environ.pop(name, None)
    if hold != "default":
        os.environ[name] = "1" if hold == "on" else "0"
    os.environ[name + "_TIMEOUT"] = str(seconds)


def request(rid: str, prompt: list[int], room: int) -> Any:
    """A request of the engine's own class."""
    make = boot.member("schedule_batch", "Req")
    sampling = boot.member("sampling", "SamplingParams")
    return make(
        rid,
        "",
        prompt,
        sampling(max_new_tokens=4),
        bootstrap_room=room,
        bootstrap_host="10.77.0.1",
        bootstrap_port=8998,
    )


def rejected(rid: str, room: int) -> Any:
    """A request that the engine's own intake has refused: its prompt is a stub, its end is only announced."""
    made = request(rid, list(range(1, 1500)), room)
    made.set_finish_with_abort("the prompt does not fit (exercise)")
    return made
