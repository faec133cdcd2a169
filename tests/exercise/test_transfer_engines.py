"""What single sends of Mooncake and Ascend do when they are exercised: releases as they are, and hardened.

Marked `lab`, as `test_exercise_engines`: needs the lab's interpreter and the engines in its cache. Ascend's
manager is the engine's own; its library is not there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pdguard.exercise import run_exercise
from tests.exercise.test_exercise_engines import PYTHON, engine
from tests.exercise.test_mori_engines import harden

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300), pytest.mark.xdist_group("transfer")]

VERSIONS = ("0.5.19", "0.5.23")
PATHS = ("slice", "layers", "dcp", "ascend")


def outcomes(path: str) -> dict[str, str]:
    report = run_exercise(PYTHON, path, ["transfer"], 200)
    assert [(r.id, r.why) for r in report.results if r.state == "not-run"] == []
    return {result.id.removeprefix("transfer."): result.outcome for result in report.results}


@pytest.mark.parametrize("version", VERSIONS)
def test_releases_bound_one_path_at_most(version: str) -> None:
    assert outcomes(engine(version)) == {
        "batch-cap.mooncake": "absent" if version == "0.5.19" else "capped",
        **{f"batch-cap.{path}": "absent" for path in PATHS},
        "siblings.ascend": "early",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_hardened_engines_bound_every_path_and_wait_for_siblings(version: str, tmp_path: Path) -> None:
    assert outcomes(harden(version, tmp_path)) == {
        **{f"batch-cap.{path}": "capped" for path in ("mooncake", *PATHS)},
        "siblings.ascend": "fixed",
    }
