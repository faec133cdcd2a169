"""What the installed engines do when they are exercised, against the tables read from their sources.

Marked `lab`: needs the lab's interpreter and the engines in its cache; neither its network namespace nor a
model. A version that the cache lacks is skipped.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdguard.exercise import ExerciseReport, PairReport, run_exercise, run_pair
from pdguard.exercise.catalogue import RANKS
from pdguard.exercise.engine.situations import SITUATIONS, TOGETHER
from pdguard.exercise.pair import between
from pdguard.exercise.process import EngineProcess
from tests.lab.cache import Cache
from tests.lab.spec import VERSIONS

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

CACHE = Cache.default()
PYTHON = str(CACHE.python)
LETTERS = {
    "drained": "D",
    "timeout": "T",
    "no hold": "N",
    "early ack": "E",
    "partial": "P",
    "unnoticed": "U",
}
HELD = ("0.5.21", "0.5.22", "0.5.23")

# Decode's version to the cells in the order of SITUATIONS, one string for each version of prefill; hold on.
# NIXL's fifth cell (here: a refused post) is the one that the tables from the sources leave open.
_OLD = ("DDTTNP", "DDTTNP", "DDDDND", "TTTTNT", "TTTTNT")
_NEW = ("TTTTTT", "TTTTTT", "TTTTTT", "DDDDTD", "DDDDTD")
MOONCAKE = {
    "0.5.19": _OLD,
    "0.5.20": _OLD,
    "0.5.21": ("DDTTEP", "DDTTEP", "DDDDED", "TTTTTT", "TTTTTT"),
    "0.5.22": _NEW,
    "0.5.23": _NEW,
}
NIXL = {
    "0.5.19": ("DDTTUP", "DDTTUP", "DDDTUD", "TTTTUT", "TTTTUT"),
    "0.5.20": ("DDTTUP", "DDTTNP", "DDDTND", "TTTTNT", "TTTTNT"),
    "0.5.21": ("DDTTUP", "DDTTTP", "DDDTED", "TTTTTT", "TTTTTT"),
    "0.5.22": ("TTTTUT", "TTTTTT", "TTTTTT", "DDDDED", "DDDDTD"),
    "0.5.23": ("TTTTUT", "TTTTTT", "TTTTTT", "DDDDED", "DDDDTD"),
}
_MORI_OLD = ("TTTTNT",) * 5
_MORI_NEW = ("TTTTTT", "TTTTTT", "TTTTTT", "DDDDED", "DDDDTD")
MORI = {
    "0.5.19": _MORI_OLD,
    "0.5.20": _MORI_OLD,
    "0.5.21": ("NNNNNN",) * 5,
    "0.5.22": _MORI_NEW,
    "0.5.23": _MORI_NEW,
}
NIXL_RANKS = {"nothing-to-hold-on-one.nixl", "acknowledged-on-one.nixl"}
QUICK = {("0.5.20", "mooncake"), ("0.5.22", "mooncake")}
TABLES = {"mooncake": MOONCAKE, "nixl": NIXL, "mori": MORI}


def engine(version: str) -> str:
    path = CACHE.engine(version)
    if not path.is_dir() or not CACHE.python.exists():
        pytest.skip(f"the lab's cache has no {version}: python -m tests.lab.run setup")
    return str(path)


@pytest.fixture(scope="module", params=[pytest.param(v, marks=pytest.mark.xdist_group(v)) for v in VERSIONS])
def report(request: pytest.FixtureRequest) -> ExerciseReport:
    return run_exercise(PYTHON, engine(request.param), None, 600)


def outcomes(report: ExerciseReport, family: str) -> dict[str, str]:
    found = [result for result in report.results if result.id.startswith(family + ".")]
    return {result.id[len(family) + 1 :]: result.outcome for result in found}


def at_least(report: ExerciseReport, version: str) -> bool:
    return VERSIONS.index(report.engine.version) >= VERSIONS.index(version)


def test_everything_runs(report: ExerciseReport) -> None:
    left_out = {result.id for result in report.results if result.state == "not-run"}
    # MORI has no acknowledgement before 0.5.22, so its ranks have nothing to agree on.
    assert left_out == ({"hold.rank-agreement.mori"} if not at_least(report, "0.5.21") else set())
    assert report.engine.missing == {}


def test_the_doors_refuse_from_0_5_21(report: ExerciseReport) -> None:
    word = "fixed" if at_least(report, "0.5.21") else "vulnerable"
    for side in ("prefill", "decode"):
        for case, seen in outcomes(report, f"door.{side}").items():
            assert seen == (word if case in ("rejected", "streaming-session") else "queued"), (side, case)


def test_aborted_results_are_retired_from_0_5_20(report: ExerciseReport) -> None:
    word = "fixed" if at_least(report, "0.5.20") else "vulnerable"
    assert outcomes(report, "result.prefill") == {
        "valid": "queued",
        "aborted": word,
        "aborted-twice": word,
        "aborted-middle-chunk": word,
    }


def cells(results: dict[str, str]) -> str:
    return "".join(LETTERS[results[situation]] for situation in SITUATIONS)


@pytest.mark.parametrize("backend", TABLES)
def test_the_handshake_with_its_own_kind(report: ExerciseReport, backend: str) -> None:
    version = report.engine.version
    expected = TABLES[backend][version][VERSIONS.index(version)]
    assert cells(outcomes(report, f"handshake.{backend}.on")) == expected
    by_default = cells(outcomes(report, f"handshake.{backend}.default"))
    if version in HELD:
        assert by_default == expected
    else:
        assert by_default.replace("U", "N") == "NNNNNN"


def test_every_failure_is_held_from_0_5_21(report: ExerciseReport) -> None:
    before = "held" if at_least(report, "0.5.21") else "no hold"
    for backend in ("mooncake", "nixl"):
        seen = outcomes(report, f"hold.failure.{backend}")
        unnoticed = backend == "nixl" and report.engine.version == "0.5.19"
        assert seen.pop("prefill-failure") == ("unnoticed" if unnoticed else before)
        assert seen.pop("waiting-timeout") == "held"
        assert set(seen.values()) == {before}
    mori = set(outcomes(report, "hold.failure.mori").values())
    assert mori == ({"held"} if at_least(report, "0.5.22") else {"no hold"} | (mori & {"held"}))


def test_other_behaviour(report: ExerciseReport) -> None:
    def word(version: str, after: str, before: str) -> str:
        return after if at_least(report, version) else before

    assert set(outcomes(report, "hold.fake-receiver").values()) == {word("0.5.20", "fixed", "crash")}
    assert outcomes(report, "hold.timeout")["mooncake"] == "timeout"
    assert outcomes(report, "hold.rank-agreement")["mooncake"] == word("0.5.23", "fixed", "rank-local")
    assert set(ranks := outcomes(report, "ranks")) == {*(f"{case}.mooncake" for case in RANKS), *NIXL_RANKS}
    assert ranks.pop("idle.mooncake") == "fixed"
    assert set(ranks.values()) == {word("0.5.23", "fixed", "rank-local")}
    assert outcomes(report, "hold.fast-ack")["mooncake"] == word("0.5.21", "drained", "timeout")
    assert outcomes(report, "transfer.batch-cap")["mooncake"] == word("0.5.20", "capped", "absent")
    assert report.outcome("hicache.restore-consensus") == word("0.5.22", "fixed", "rank-local")


class Fleet:
    """Two processes for each version, one for each side, started when first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[tuple[str, str], EngineProcess] = {}

    def get(self, side: str, version: str) -> EngineProcess:
        if (side, version) not in self._running:
            process = EngineProcess(PYTHON, engine(version), time.monotonic() + 120)
            self._running[side, version] = self._stack.enter_context(process)
        return self._running[side, version]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


def by_id(report: PairReport) -> dict[str, str]:
    return {result.id.rpartition(".")[2]: result.outcome for result in report.results}


@pytest.mark.xdist_group("pairs")
@pytest.mark.parametrize("backend", TABLES)
@pytest.mark.parametrize("decode", VERSIONS)
def test_the_handshake_of_every_pair(fleet: Fleet, decode: str, backend: str) -> None:
    if (decode, backend) not in QUICK and not os.environ.get("PDGUARD_LAB_PAIRS"):
        pytest.skip("a row takes about a minute: PDGUARD_LAB_PAIRS=all runs every one")
    row = {}
    for prefill in VERSIONS:
        sides = fleet.get("decode", decode), fleet.get("prefill", prefill)
        report = between(*sides, backend, deadline=time.monotonic() + 120)
        assert [result.why for result in report.results if result.state == "not-run"] == []
        row[prefill] = by_id(report)
        # 0.5.22 and 0.5.23 each added a name to prefill's answer about itself; any older decode refuses it.
        newer = prefill in ("0.5.22", "0.5.23") and VERSIONS.index(prefill) > VERSIONS.index(decode)
        assert row[prefill][TOGETHER] == ("refused" if newer else "together"), (decode, prefill)
        adapted = any("without what decode does not know" in note for note in report.results[-1].stand_ins)
        assert adapted == newer
    expected = dict(zip(VERSIONS, TABLES[backend][decode], strict=True))
    assert {prefill: cells(found) for prefill, found in row.items()} == expected


def test_a_pair_by_its_own_means() -> None:
    report = run_pair(
        PYTHON, engine("0.5.22"), PYTHON, engine("0.5.21"), "mooncake", situations=["in-flight"]
    )
    assert by_id(report) == {"in-flight": "timeout"}
    assert (report.decode.version, report.prefill.version) == ("0.5.22", "0.5.21")


def digest(folder: Path) -> str:
    """Names, contents and times of everything below `folder`."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(f"{path.relative_to(folder)} {path.lstat().st_mtime_ns}\n".encode())
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()


def test_the_engine_is_left_as_it_was() -> None:
    root = Path(engine("0.5.22")) / "sglang"
    before = digest(root)
    run_exercise(PYTHON, engine("0.5.22"), ["door", "result", "handshake.mooncake.on.in-flight"], 120)
    assert digest(root) == before
