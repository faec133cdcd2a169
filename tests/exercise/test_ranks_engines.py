"""Whether decode's ranks of hardened releases hold and release as one when they are exercised.

Marked `lab`, as `test_exercise_engines`, which has the releases as they are: needs the lab's interpreter and
the engines in its cache.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pdguard.exercise import run_exercise
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER
from tests.exercise.test_exercise_engines import PYTHON, engine
from tests.fingerprint.trees import CATALOGUE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600), pytest.mark.xdist_group("ranks")]

BASES = ("0.5.19", "0.5.20", "0.5.21", "0.5.22")
QUICK = {("0.5.20", True)}
CONTRACTS = ("ranks", "hold.rank-agreement.mooncake", "hold.rank-agreement.nixl")


def with_what_it_needs(base: str, fix: str) -> set[str]:
    requires = {b.fix: b.requires for b in load_backports(CATALOGUE) if b.base == base}
    found, left = {fix}, {fix}
    while left:
        left = {needed for one in left for needed in requires[one]} - found
        found |= left
    return found


def harden(base: str, target: Path, alone: bool) -> str:
    """The release with every backport for it, or with X1 and what that needs."""
    stock = Path(engine(base)) / "sglang"
    below = target / "sglang"
    shutil.copytree(stock, below, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    chosen = [b for b in load_backports(CATALOGUE) if b.base == base]
    if alone:
        wanted = with_what_it_needs(base, "X1")
        chosen = [b for b in chosen if b.fix in wanted]
    texts = {s.file: (stock / s.file).read_text("utf-8") for b in chosen for s in b.seams}
    edited, refused = edit(texts, chosen, "pdguard")
    assert refused == ()
    for one in edited:
        (below / one.file).unlink()
        (below / one.file).write_text(one.after, "utf-8")
    (below / PAYLOAD_FOLDER).mkdir()
    for name, text in load_payload(CATALOGUE).items():
        (below / PAYLOAD_FOLDER / name).write_text(text, "utf-8")
    return str(target)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_hardened_ranks_hold_and_release_as_one(base: str, alone: bool, tmp_path: Path) -> None:
    if (base, alone) not in QUICK and not os.environ.get("PDGUARD_LAB_RANKS"):
        pytest.skip("half a minute each: PDGUARD_LAB_RANKS=all runs every one")
    report = run_exercise(PYTHON, harden(base, tmp_path, alone), CONTRACTS, 300)
    assert {result.id: result.why for result in report.results if result.state != "pass"} == {}
    assert len(report.results) == 11
