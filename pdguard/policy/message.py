"""Messages of checks: text with facts in braces, `{engine.pool:,}`; a missing fact prints as `?`."""

from __future__ import annotations

import re
from collections.abc import Callable

from pdguard.facts.catalogue import ROOTS
from pdguard.policy.expression import Ref

_PLACE = re.compile(r"\{(" + "|".join(ROOTS) + r")\.([a-z_][a-z0-9_]*)(?::([,.0-9f%]*))?\}")
MAX_ITEMS = 6


class Message:
    """A parsed message template."""

    __slots__ = ("refs", "template")

    def __init__(self, template: str) -> None:
        self.template = template
        self.refs: tuple[Ref, ...] = tuple((m[1], m[2]) for m in _PLACE.finditer(template))

    def fill(self, value: Callable[[Ref], object]) -> str:
        """The text with every placeholder replaced by `value((root, name))`, or `?` where that is None."""
        return _PLACE.sub(lambda m: _show(value((m[1], m[2])), m[3] or ""), self.template)


def _show(value: object, spec: str) -> str:
    if value is None:
        return "?"
    if isinstance(value, tuple | list):
        items = [_show(v, spec) for v in value[:MAX_ITEMS]]
        between = " and " if "," in spec else ", "
        return between.join(items) + (f" … ({len(value)})" if len(value) > MAX_ITEMS else "") or "none"
    if isinstance(value, float) and value.is_integer() and not spec.endswith("f"):
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and spec:
        return format(value, spec)
    return str(value)
