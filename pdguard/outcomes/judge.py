"""Whether what was measured calls for action: the faults behind exit code 12, in one place."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdguard.facts.interface import Scalar
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Outcomes
from pdguard.outcomes.margin import Verdict
from pdguard.outcomes.sizing import DecodeSizing

EXIT_CLEAN, EXIT_HIGH = 0, 12


def timeout_ratio(engine: EngineOutcomes) -> tuple[float | None, float]:
    """The share of holds that ended without proof, and how many holds there were.

    The share is None where an outcome is not known or no hold ended.
    """
    holds = [engine.holds.get(outcome) for outcome in OUTCOMES]
    known = [h.value for h in holds if isinstance(h, Figure)]
    total = sum(known)
    if len(known) < len(OUTCOMES) or total <= 0:
        return None, total
    return (known[1] + known[2]) / total, total


class Kind(enum.Enum):
    """What a fault is about."""

    UNPROVEN = "too many holds ended without proof"
    T_HOLD = "T_hold is off or too short"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one decode. As text it begins with the engine's name."""

    engine: str
    kind: Kind
    text: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.engine}: {self.text}"


def faults(
    outcomes: Outcomes, sizing: Sequence[DecodeSizing], policy: Mapping[str, Scalar]
) -> tuple[Fault, ...]:
    """Too many holds without proof (as PDG610), and every T_hold that settings show to be too short."""
    found = []
    for engine in outcomes.decodes:
        ratio, total = timeout_ratio(engine)
        limit = float(policy["timeout_ratio"])
        if ratio is not None and total >= float(policy["min_holds"]) and ratio > limit:
            text = f"{ratio:.1%} of {total:,.0f} holds ended without proof, above {limit:.1%}"
            found.append(Fault(engine.name, Kind.UNPROVEN, text))
    short = (one for one in sizing if one.margin.verdict is Verdict.FAILS)
    found += [Fault(one.name, Kind.T_HOLD, one.margin.why) for one in short]
    return tuple(found)


def exit_code(found: Sequence[Fault]) -> int:
    """12, as for findings of severity high, where there is a fault."""
    return EXIT_HIGH if found else EXIT_CLEAN
