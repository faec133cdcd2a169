"""X6 on the installed engines: a refusal at one door, between two of a kind, and with a stock peer.

Marked `lab`: needs the lab's interpreter and the engines in its cache; a version that it lacks is skipped.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdguard.exercise import ExerciseReport, run_exercise
from pdguard.exercise.pair import between
from pdguard.exercise.process import EngineProcess
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER
from tests.fingerprint.trees import CATALOGUE
from tests.lab.cache import Cache
from tests.lab.spec import VERSIONS

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

CACHE = Cache.default()
PYTHON = str(CACHE.python)
QUICK = ("0.5.19", "0.5.23")
SIDES = ("refused-by-prefill", "refused-by-prefill-late", "refused-by-decode", "refused-by-decode-late")


def engine(version: str) -> Path:
    path = CACHE.engine(version)
    if not path.is_dir() or not CACHE.python.exists():
        pytest.skip(f"the lab's cache has no {version}: python -m tests.lab.run setup")
    return path


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of a release with X6 and what it needs, and nothing else; made once."""
    made: dict[str, Path] = {}

    def make(version: str) -> Path:
        if version not in made:
            made[version] = _harden(engine(version), tmp_path_factory.mktemp(version), version)
        return made[version]

    return make


def _harden(stock: Path, folder: Path, version: str) -> Path:
    shutil.copytree(stock / "sglang", folder / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
    for beside in stock.iterdir():
        if beside.name != "sglang":
            (folder / beside.name).symlink_to(beside)
    every = {b.fix: b for b in load_backports(CATALOGUE) if b.base == version}
    chosen = [every[fix] for fix in ("X6", *every["X6"].requires)]
    files = {seam.file for backport in chosen for seam in backport.seams}
    texts = {file: (stock / "sglang" / file).read_text() for file in files}
    edited, refused = edit(texts, chosen, "pdguard")
    assert refused == ()
    contents = {one.file: one.after for one in edited}
    contents |= {f"{PAYLOAD_FOLDER}/{name}": text for name, text in load_payload(CATALOGUE).items()}
    for file, text in contents.items():
        path = folder / "sglang" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def outcomes(report: ExerciseReport) -> Mapping[str, str]:
    assert report.engine.missing == {}
    return {result.id: result.outcome for result in report.results}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_engine_leaves_the_other_half_waiting(version: str) -> None:
    found = outcomes(run_exercise(PYTHON, str(engine(version)), ["refusal.prefill", "refusal.decode"], 300))
    assert len(found) == 4
    assert set(found.values()) <= {"waits", "poisoned"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hardened_one_releases_it_in_every_order(hardened: Callable[[str], Path], version: str) -> None:
    found = outcomes(run_exercise(PYTHON, str(hardened(version)), ["refusal"], 300))
    assert len(found) == 6
    assert set(found.values()) == {"released"}


@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
@pytest.mark.parametrize("stock", QUICK)
def test_a_stock_peer_trips_over_nothing(hardened: Callable[[str], Path], stock: str, backend: str) -> None:
    """What a hardened half sends is known to a stock one, or passed over; a later request is served."""
    ours = hardened("0.5.21")
    with ExitStack() as stack:
        deadline = time.monotonic() + 400
        paths = {"ours": str(ours), "stock": str(engine(stock))}
        ends = {
            name: [stack.enter_context(EngineProcess(PYTHON, path, deadline)) for _ in range(2)]
            for name, path in paths.items()
        }
        both = "refused-by-both"
        prefill = between(
            *(ends["stock"][0], ends["ours"][0], backend),
            hold="default",
            situations=[*SIDES[:2], both],
            deadline=deadline,
        )
        decode = between(
            *(ends["ours"][1], ends["stock"][1], backend),
            hold="default",
            situations=[*SIDES[2:], both],
            deadline=deadline,
        )
    # 0.5.19 has no reader for what prefill says over NIXL, and waits as it always has.
    told = "waits" if (stock, backend) == ("0.5.19", "nixl") else "released"
    assert [one.outcome for one in prefill.results] == [told, told, "released"]
    # Of what decode refuses, a stock prefill learns where it waits already.
    assert [one.outcome for one in decode.results] == ["waits", "released", "released"]
