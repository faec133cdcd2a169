"""What hardened MORI does when it is exercised: the engine's own code against a double of its library.

Marked `lab`, as `test_exercise_engines`: needs the lab's interpreter and the engines in its cache.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdguard.exercise import ExerciseReport, run_exercise
from pdguard.exercise.pair import between
from pdguard.exercise.process import EngineProcess
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER
from tests.exercise.test_exercise_engines import LETTERS, PYTHON, by_id, cells, engine, outcomes
from tests.fingerprint.trees import CATALOGUE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), pytest.mark.xdist_group("mori")]

BASES = ("0.5.19", "0.5.20", "0.5.21", "0.5.22")
CONTRACTS = (
    "handshake.mori.on",
    "hold.failure.mori",
    "hold.timeout.mori",
    "hold.fast-ack.mori",
    "drain.mori",
)
DRAINED = ("unknown-room", "failed-room", "concluded-room", "skip-after-submit")
LOST = ("broken-submit", "time-limit")


def harden(base: str, folder: Path) -> str:
    """The release with every backport for it; what is not edited is linked to."""
    stock = Path(engine(base)) / "sglang"
    target = folder / "sglang"
    shutil.copytree(stock, target, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    chosen = [b for b in load_backports(CATALOGUE) if b.base == base]
    files = {seam.file for backport in chosen for seam in backport.seams}
    texts = {file: (stock / file).read_text("utf-8") for file in files if (stock / file).is_file()}
    edited, refused = edit(texts, chosen, "pdguard")
    assert refused == ()
    for one in edited:
        (target / one.file).unlink()
        (target / one.file).write_text(one.after, "utf-8")
    (target / PAYLOAD_FOLDER).mkdir()
    for name, text in load_payload(CATALOGUE).items():
        (target / PAYLOAD_FOLDER / name).write_text(text, "utf-8")
    return str(folder)


class Engines:
    """Hardened engines, and a process for each side of one, made when first needed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._running: dict[tuple[str, str], EngineProcess] = {}

    def path(self, name: str) -> str:
        """`0.5.21` is the release, `0.5.21+` the hardened one."""
        if not name.endswith("+"):
            return engine(name)
        folder = self._folder / name
        return str(folder) if folder.is_dir() else harden(name[:-1], folder)

    def process(self, side: str, name: str) -> EngineProcess:
        if (side, name) not in self._running:
            made = EngineProcess(PYTHON, self.path(name), time.monotonic() + 120)
            self._running[side, name] = self._stack.enter_context(made)
        return self._running[side, name]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(tmp_path_factory.mktemp("mori"), stack)


def run(engines: Engines, name: str, contracts: Sequence[str] = CONTRACTS) -> ExerciseReport:
    report = run_exercise(PYTHON, engines.path(name), contracts, 300)
    assert [(r.id, r.why) for r in report.results if r.state == "not-run"] == []
    return report


@pytest.mark.parametrize("base", BASES)
def test_hardened_mori_drains_and_holds_after_everything(engines: Engines, base: str) -> None:
    report = run(engines, f"{base}+")
    assert cells(outcomes(report, "handshake.mori.on")) == "DDDDTD"
    assert set(outcomes(report, "hold.failure.mori").values()) == {"held"}
    assert report.outcome("hold.timeout.mori") == "timeout"
    assert report.outcome("hold.fast-ack.mori") == "drained"
    drains = outcomes(report, "drain.mori")
    assert {drains[case] for case in DRAINED} == {"drained"}
    # 0.5.22 drains what went over the time limit; a submission that broke off is waited out everywhere.
    assert [drains[case] for case in LOST] == ["timeout", "drained" if base == "0.5.22" else "timeout"]


@pytest.mark.parametrize(
    ("version", "word"), [("0.5.20", "timeout"), ("0.5.21", "no hold"), ("0.5.22", "drained")]
)
def test_stock_mori_by_the_same_contracts(engines: Engines, version: str, word: str) -> None:
    contracts = [f"drain.mori.{case}" for case in DRAINED]
    assert set(outcomes(run(engines, version, contracts), "drain.mori").values()) == {word}


PAIRS = {
    # decode, prefill: an abort in flight, a failed send.
    ("0.5.21+", "0.5.21"): "TT",
    ("0.5.21", "0.5.21+"): "NN",
    ("0.5.21+", "0.5.20+"): "DT",
    ("0.5.20+", "0.5.21+"): "DT",
    ("0.5.21+", "0.5.20"): "TT",
    ("0.5.20", "0.5.21+"): "TN",
    ("0.5.21+", "0.5.19+"): "DT",
    ("0.5.22+", "0.5.22"): "DE",
    ("0.5.22", "0.5.22+"): "DT",
    ("0.5.22+", "0.5.21+"): "TT",
}


@pytest.mark.parametrize(("decode", "prefill"), PAIRS)
def test_mixed_pairs(engines: Engines, decode: str, prefill: str) -> None:
    sides = engines.process("decode", decode), engines.process("prefill", prefill)
    situations = ["in-flight", "failed-send"]
    report = between(*sides, "mori", situations=situations, deadline=time.monotonic() + 120)
    assert [result.why for result in report.results if result.state == "not-run"] == []
    found = by_id(report)
    assert "".join(LETTERS[found[one]] for one in situations) == PAIRS[decode, prefill]
