"""--select and --skip, and waivers with reason and date."""

from __future__ import annotations

import datetime

import pytest

from pdguard._bundle import bundled
from pdguard.cluster.model import Waiver
from pdguard.errors import SelectionError
from pdguard.policy.loader import load_checks
from pdguard.policy.model import Finding, Severity, Status
from pdguard.policy.select import find_check, select_checks
from pdguard.policy.waivers import apply_waivers

CHECKS = load_checks(bundled("checks"))
TODAY = datetime.date(2026, 11, 30)


def finding(check: str = "PDG101", target: str = "p0", status: Status = Status.FAIL) -> Finding:
    return Finding(check, "t", "pool", Severity.HIGH, status, None, target, "m")


def waiver(check: str = "PDG101", target: str = "*", days: int = 0) -> Waiver:
    day = TODAY + datetime.timedelta(days)
    return Waiver(check=check, target=target, reason="pool is raised on Friday", expires=day)


def ids(select: list[str], skip: list[str]) -> set[str]:
    return {c.id for c in select_checks(CHECKS, select, skip)}


def test_select_by_id_beginning_gate_tag_and_commas() -> None:
    assert ids(["pdg101,PDG501"], []) == {"PDG101", "PDG501"}
    assert ids(["PDG1"], []) == ids(["pool"], []) != set()
    assert ids([], ["pool"]) == {c.id for c in CHECKS} - ids(["pool"], [])
    tag = next(t for c in CHECKS for t in c.tags)
    assert ids([tag], []) == {c.id for c in CHECKS if tag in c.tags}


@pytest.mark.parametrize("name", ["PDG9", "poool", "pdg1011", "lifetme"])
def test_a_name_that_fits_nothing_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(SelectionError, match="no check, gate or tag"):
        ids([name], [])


def test_find_check_in_any_case() -> None:
    assert find_check(CHECKS, "pdg101").id == "PDG101"
    with pytest.raises(SelectionError, match="PDG"):
        find_check(CHECKS, "PDG1O1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (waiver(), Status.WAIVED),
        (waiver(days=-1), Status.FAIL),
        (waiver(target="p*"), Status.WAIVED),
        (waiver(target="d*"), Status.FAIL),
        (waiver(check="PDG102"), Status.FAIL),
    ],
)
def test_a_waiver_needs_check_target_and_day(given: Waiver, expected: Status) -> None:
    (found,), notes = apply_waivers([finding()], [given], TODAY, {"PDG101", "PDG102"})
    assert found.status is expected
    assert bool(notes) == (expected is Status.FAIL)


def test_what_passes_is_never_waived_and_unknown_can_be() -> None:
    given = [finding(status=Status.PASS), finding(status=Status.UNKNOWN)]
    found, notes = apply_waivers(given, [waiver()], TODAY, {"PDG101"})
    assert [f.status for f in found] == [Status.PASS, Status.WAIVED]
    assert not notes
    assert found[1].waiver == "pool is raised on Friday (until 2026-11-30)"


def test_a_selection_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(SelectionError, match="leave no check"):
        ids(["PDG101"], ["pool"])


def test_a_waiver_of_one_pair_does_not_waive_those_alike() -> None:
    alike = Finding(
        "PDG202", "t", "pool", Severity.HIGH, Status.FAIL, None, "p0→d0", "m", members=(("p0", "p1"), ("d0",))
    )
    for target, expected in (("p0→d0", Status.FAIL), ("p*->d0", Status.WAIVED), ("*", Status.WAIVED)):
        (found,), _ = apply_waivers([alike], [waiver("PDG202", target)], TODAY, {"PDG202"})
        assert found.status is expected, target


def test_nothing_is_said_of_waivers_of_checks_that_did_not_run() -> None:
    _, notes = apply_waivers([finding()], [waiver("PDG303")], TODAY, {"PDG101"})
    assert not notes
