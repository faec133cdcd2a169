"""What decode's caches do on two ranks, on releases as they are and hardened, and the payload over real gloo.

Marked `lab`: needs the lab's interpreter and the engines in its cache. Copies are events and tensors on a CPU
here: the cache itself cannot run without a GPU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pdguard.exercise import run_exercise
from pdguard.harden.edits import edit
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER
from tests.fingerprint.trees import CATALOGUE
from tests.lab.cache import Cache
from tests.lab.spec import VERSIONS

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

CACHE = Cache.default()
PYTHON = str(CACHE.python)
HARDENED = ("0.5.19", "0.5.20", "0.5.21")
HELD = ("hold.failure.mooncake.hicache-restore", "hold.failure.nixl.hicache-restore")
DRAINED = {
    **dict.fromkeys(("memory", "pause", "two-ranks", "two-ranks-pause", "copied-on-one"), "drained"),
    **dict.fromkeys(("nothing-copied", "pause-nothing-copied"), "given back"),
}


def engine(version: str) -> Path:
    path = Path(CACHE.engine(version))
    if not path.is_dir() or not CACHE.python.exists():
        pytest.skip(f"the lab's cache has no {version}: python -m tests.lab.run setup")
    return path


def outcomes(path: Path, *contracts: str) -> dict[str, str]:
    report = run_exercise(PYTHON, str(path), list(contracts), 200)
    assert [(r.id, r.why) for r in report.results if r.state == "not-run"] == []
    return {result.id: result.outcome for result in report.results}


def drains(found: Mapping[str, str]) -> dict[str, str]:
    start = "hicache.retraction-drain."
    return {name.removeprefix(start): word for name, word in found.items() if name.startswith(start)}


@pytest.mark.parametrize("version", VERSIONS)
def test_releases_as_they_are(version: str) -> None:
    found = outcomes(engine(version), "hicache")
    agreed, waited = version in ("0.5.22", "0.5.23"), version not in ("0.5.19", "0.5.20")
    assert found["hicache.restore-consensus"] == ("fixed" if agreed else "rank-local")
    vulnerable = {case: word.replace("drained", "vulnerable") for case, word in DRAINED.items()}
    # From 0.5.21 on a copy that only one rank has ends the engine.
    assert drains(found) == ({**DRAINED, "copied-on-one": "refused"} if waited else vulnerable)


@pytest.mark.parametrize("version", HARDENED)
def test_hardened_releases(version: str, tmp_path: Path) -> None:
    found = outcomes(hardened(version, tmp_path), "hicache", *HELD)
    assert {found.pop(name) for name in HELD} == {"held"}
    assert found["hicache.restore-consensus"] == "fixed"
    refused = {"copied-on-one": "refused"} if version == "0.5.21" else {}
    assert drains(found) == {**DRAINED, **refused}


def hardened(version: str, target: Path) -> Path:
    """The release with every backport for it: files that were not changed are links."""
    stock = engine(version) / "sglang"
    backports = [b for b in load_backports(CATALOGUE) if b.base == version]
    texts = {s.file: (stock / s.file).read_text("utf-8") for b in backports for s in b.seams}
    edited, refused = edit(texts, backports, "pdguard")
    assert refused == ()
    files = {one.file: one.after for one in edited}
    files |= {f"{PAYLOAD_FOLDER}/{name}": text for name, text in load_payload(CATALOGUE).items()}
    _overlay(stock, target / "sglang", files)
    return target


def _overlay(stock: Path, target: Path, files: Mapping[str, str]) -> None:
    target.mkdir()
    inside = {name.partition("/")[0] for name in files if "/" in name}
    for entry in stock.iterdir() if stock.is_dir() else ():
        if entry.name not in inside and entry.name not in files and entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)
    for name, text in files.items():
        if "/" not in name:
            (target / name).write_text(text, "utf-8")
    for folder in inside:
        below = {
            name.partition("/")[2]: text for name, text in files.items() if name.startswith(folder + "/")
        }
        _overlay(stock / folder, target / folder, below)


RANK = """
import enum, importlib.util, json, sys, types
rank, folder, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
from torch import distributed
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
start = folder + "/__init__.py"
spec = importlib.util.spec_from_file_location("p", start, submodule_search_locations=[folder])
sys.modules["p"] = importlib.util.module_from_spec(spec)
from p import hicache
class Result(enum.Enum):
    PENDING, READY, FAILED = 0, 1, 2
mixin = types.ModuleType("mixin")
mixin.HiCacheRestoreResult = Result
sys.modules["sglang.srt.disaggregation.decode_hicache_mixin"] = mixin
N = types.SimpleNamespace
def copy(over):
    return N(finish_event=N(query=lambda: over))
def queue(*statuses):
    counter = N(events=[copy(True), copy(rank == 0)])
    cache = N(cache_controller=N(layer_done_counter=counter), pp_size=1)
    entries = [N(hicache_restore_status=Result[one]) for one in statuses]
    scheduler = N(enable_decode_hicache=True)
    return N(queue=entries, gloo_group=distributed.group.WORLD, tree_cache=cache, scheduler=scheduler)
mine = queue(*(("FAILED", "READY", "PENDING") if rank == 0 else ("READY", "READY", "FAILED")))
said = [
    [one and one.name for one in hicache.restored(mine, [4, 4, 4])],
    [one and one.name for one in hicache.restored(mine, [3, 0, 1])],
    [one and one.name for one in hicache.restored(mine, [4, 3, 4])],
    [hicache.has_free_load_back_slot(mine, index) for index in (0, 1)],
]
distributed.barrier()
print(json.dumps(said))
"""


def test_two_processes_agree_over_gloo(tmp_path: Path) -> None:
    if not CACHE.python.exists():
        pytest.skip("there is no lab: python -m tests.lab.run setup")
    store, folder = str(tmp_path / "store"), str(CATALOGUE / "payload")
    ranks = [
        subprocess.Popen(
            [PYTHON, "-B", "-c", RANK, str(rank), folder, store], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said[0] == said[1]
    assert said[0] == [
        ["FAILED", "READY", "PENDING"],
        [None, None, None],
        ["FAILED", None, "PENDING"],
        [True, False],
    ]
