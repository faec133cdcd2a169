"""The only module that knows the expression language: CEL, by its official runtime.

CEL's `&&` and `||` absorb errors as three-valued logic does, so a fact that is missing makes an expression
unknown exactly where it matters. Everything here speaks of True, False and None (unknown).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel

from pdguard.facts.catalogue import ROOTS

Ref = tuple[str, str]

_REF = re.compile(r"\b(" + "|".join(ROOTS) + r")\.([a-z_][a-z0-9_]*)")
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


class ExpressionError(ValueError):
    """An expression that does not compile, or that did not give a truth value."""


_environment: Any = None


def _env() -> Any:
    global _environment  # noqa: PLW0603 - one environment serves all expressions, built on first use
    if _environment is None:
        _environment = cel.NewEnv(variables={root: cel.Type("map<string, dyn>") for root in ROOTS})
    return _environment


class Expression:
    """A compiled expression and the facts it refers to."""

    __slots__ = ("_program", "refs", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        bare = _LITERAL.sub("''", text)
        self.refs: tuple[Ref, ...] = tuple(dict.fromkeys(_REF.findall(bare)))
        try:
            self._program = _env().compile(text)
        except RuntimeError as error:
            raise ExpressionError(_first_line(error)) from error
        if self._program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
            raise ExpressionError("the expression gives no truth value")

    def evaluate(self, values: Mapping[Ref, object]) -> bool | None:
        """True, False, or None where a fact that matters is not in `values`."""
        data: dict[str, dict[str, object]] = {root: {} for root, _ in self.refs}
        for (root, name), value in values.items():
            if root in data:
                data[root][name] = list(value) if isinstance(value, tuple) else value
        result = self._program.eval(data=data)
        kind = result.type()
        if kind == cel.Type.BOOL:
            return bool(result.plain_value())
        text = str(result.plain_value())
        if kind == cel.Type.ERROR and ("not found" in text or "NOT_FOUND" in text):
            return None
        raise ExpressionError(f"`{self.text}` gave no truth value: {text[:120]}")


def _first_line(error: Exception) -> str:
    text = str(error).split("\n", 1)[0]
    return text.removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
