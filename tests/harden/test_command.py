"""`pdguard harden` as an operator types it, on the files of real releases."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdguard.cli.app import app
from pdguard.facts.fixes import add_fix_facts
from pdguard.facts.interface import FactSet, Grade
from pdguard.fingerprint.notice import hardened_fixes
from pdguard.fingerprint.targets import open_target
from pdguard.harden.agent import apply_request
from pdguard.harden.answers import SetLabel
from pdguard.harden.model import PAYLOAD_FOLDER
from pdguard.harden.operate import Operator, Wanted
from pdguard.harden.results import Site
from pdguard.transport.local import LocalTransport
from tests.harden.command import Done
from tests.harden.packages import contents, install, patch, snapshot
from tests.wheels import wheel

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

CORE = {"38935", "40645", "41402", "41404", "41618", "43719", "41128", "37077"}
OLDEST = {"36988", "37454", "X4", "32758"}
EVERYWHERE = {"X6", "X7", "X8"}


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("0.5.20", tmp_path_factory.mktemp("stock"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return install("0.5.20", tmp_path / "site-packages")


def test_a_plan_changes_nothing_and_says_what_it_would(stock: Path) -> None:
    before = snapshot(stock.parent)
    done = Done("--target", str(stock), "--backport", "v0.5.20")
    assert done.code == 0, done.err
    assert snapshot(stock.parent) == before
    assert done.out.startswith("PLANNED  ")
    assert "version 0.5.20, base v0.5.20" in done.out
    assert "nothing has been changed" in done.out
    assert f"+++ b/sglang/{PAYLOAD_FOLDER}/doors.py" in done.out
    assert "--apply" in done.out
    for fix in CORE:
        assert f"  {fix} " in done.out


@pytest.mark.parametrize(
    ("version", "wanted", "there"),
    [
        ("0.5.19", CORE | OLDEST, set()),
        ("0.5.20", CORE, OLDEST),
        ("0.5.21", {"43719", "41128", "37077"}, CORE),
        ("0.5.22", {"X1", "X2", "X3", "X5", *EVERYWHERE}, CORE),
        ("0.5.23", EVERYWHERE, CORE | {"X1", "X2", "X3", "X5"}),
    ],
)
def test_the_set_of_each_base(tmp_path: Path, version: str, wanted: set[str], there: set[str]) -> None:
    package = install(version, tmp_path)
    done = Done("--target", str(package), "--backport", version, "--format", "json")
    assert done.code == 0, done.err
    fixes = {f["id"]: f["action"] for f in done.json["packages"][0]["plan"]["fixes"]}
    applied = {name for name, action in fixes.items() if action == "apply"}
    assert wanted <= applied
    assert not (there - wanted) & applied


def test_apply_status_verify_and_rollback(package: Path) -> None:
    before = snapshot(package.parent)
    target = ("--target", str(package.parent))
    done = Done(*target, "--backport", "v0.5.20", "--apply", "--yes")
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("APPLIED")
    assert "the exercise was skipped: no interpreter is named (--python)" in done.out
    for one in ("srt/disaggregation/prefill.py", "srt/disaggregation/common/conn.py"):
        assert (package / one).read_text().startswith("# Changed by pdguard")

    written = contents(package)
    again = Done(*target, "--backport", "v0.5.20", "--apply", "--yes")
    assert (again.code, again.out.split()[0]) == (0, "UNCHANGED")
    assert contents(package) == written

    status = Done(*target, "--status", "--format", "json").json["packages"][0]
    assert status["status"] == "hardened"
    assert set(status["fixes"]) >= CORE

    verify = Done(*target, "--verify")
    assert (verify.code, verify.out.split()[0]) == (0, "VERIFIED"), verify.out
    count = len(status["fixes"])
    assert f"fingerprints: {count} of {count} fixes are recognised" in verify.out

    back = Done(*target, "--rollback", "--yes")
    assert (back.code, back.out.split()[0]) == (0, "RESTORED"), back.out
    assert snapshot(package.parent) == before
    assert Done(*target, "--status").out.startswith("STOCK")
    assert Done(*target, "--rollback", "--yes").out.startswith("UNCHANGED")


def test_a_hardened_package_is_recognised_by_inspect(package: Path) -> None:
    assert Done("--target", str(package), "--backport", "v0.5.20", "--apply", "--yes").code == 0
    result = CliRunner().invoke(app, ["inspect", str(package), "--format", "json"])
    states = {f["id"]: f["state"] for f in json.loads(result.stdout)["fixes"]}
    assert {name: states[name] for name in CORE - {"37077"}} == dict.fromkeys(CORE - {"37077"}, "present")


def test_a_smaller_set_and_then_the_whole_one_in_place(package: Path) -> None:
    before = snapshot(package.parent)
    target = ("--target", str(package), "--backport", "v0.5.20")
    assert Done(*target, "--only", "38935", "--apply", "--yes").code == 0
    assert "pdguard_doors" in (package / "srt/disaggregation/prefill.py").read_text()
    assert "pdguard" not in (package / "srt/disaggregation/mooncake/conn.py").read_text()
    assert Done(*target, "--apply", "--yes").code == 0
    assert "pdguard" in (package / "srt/disaggregation/mooncake/conn.py").read_text()
    assert Done(*target, "--except", "38935", "--except", "X6", "--apply", "--yes").code == 0
    assert "pdguard_doors" not in (package / "srt/disaggregation/prefill.py").read_text()
    assert Done("--target", str(package), "--rollback", "--yes").code == 0
    assert snapshot(package.parent) == before


def test_only_pulls_in_what_it_needs(stock: Path) -> None:
    done = Done("--target", str(stock), "--backport", "v0.5.20", "--only", "41404", "--format", "json")
    fixes = {f["id"]: f for f in done.json["packages"][0]["plan"]["fixes"]}
    assert fixes["41402"]["action"] == "apply"
    assert "needs it" in fixes["41402"]["why"]
    assert fixes["38935"]["action"] == "left out"


def test_the_wrong_base_is_refused(stock: Path) -> None:
    before = snapshot(stock.parent)
    for word in ((), ("--apply", "--yes")):
        done = Done("--target", str(stock), "--backport", "v0.5.19", *word)
        assert done.code == 30
        assert done.out.startswith("REFUSED")
        assert "the package is 0.5.20, not 0.5.19" in done.out
    assert snapshot(stock.parent) == before
    assert Done("--target", str(stock), "--backport", "v0.5.19", "--auto").code == 0


def test_a_vendors_edits_beside_the_seams_stay(package: Path) -> None:
    file = package / "srt/disaggregation/prefill.py"
    text = file.read_text().replace("import logging\n", "import logging\nimport vendor_tracing  # ours\n", 1)
    file.write_text(text + "\n\ndef vendor_hook():\n    return 1\n")
    done = Done("--target", str(package), "--backport", "v0.5.20", "--apply", "--yes")
    assert done.code == 0, done.out
    assert "vendor_tracing  # ours" in file.read_text()
    assert "def vendor_hook():" in file.read_text()


def test_a_vendors_edit_of_a_seam_is_refused_with_the_nearest(package: Path) -> None:
    file = package / "srt/disaggregation/prefill.py"
    file.write_text(file.read_text().replace("if not self.create_sender(", "if self.vendor_sender("))
    before = snapshot(package.parent)
    done = Done("--target", str(package), "--backport", "v0.5.20", "--apply", "--yes")
    assert done.code == 30
    assert "38935, seam 'prefill door' in srt/disaggregation/prefill.py PrefillBootstrapQueue.add" in done.out
    assert "vendor_sender" in done.out
    assert snapshot(package.parent) == before
    assert (
        Done("--target", str(package), "--backport", "v0.5.20", "--except", "38935", "--except", "X6").code
        == 0
    )


def test_a_file_that_was_edited_since_is_neither_overwritten_nor_rolled_back(package: Path) -> None:
    target = ("--target", str(package))
    assert Done(*target, "--backport", "v0.5.20", "--apply", "--yes").code == 0
    file = package / "srt/disaggregation/prefill.py"
    file.write_text(file.read_text() + "\nVENDOR = 1\n")
    before = contents(package)
    assert Done(*target, "--status").out.startswith("EDITED")
    assert Done(*target, "--verify").code == 12
    again = Done(*target, "--backport", "v0.5.20", "--apply", "--yes")
    assert again.code in (12, 30)
    assert "srt/disaggregation/prefill.py" in again.out
    back = Done(*target, "--rollback", "--yes")
    assert back.code == 30
    assert "srt/disaggregation/prefill.py" in back.out
    assert contents(package) == before


def test_an_interpreter_that_is_none_is_refused(package: Path) -> None:
    before = snapshot(package)
    done = Done(
        "--target", str(package), "--backport", "v0.5.20", "--apply", "--yes", "--python", "/nowhere/python"
    )
    assert done.code == 30
    assert "/nowhere/python" in done.out
    assert snapshot(package) == before


def test_applying_needs_a_word_of_consent(package: Path) -> None:
    before = snapshot(package)
    done = Done("--target", str(package), "--backport", "v0.5.20", "--apply")
    assert done.code == 2
    assert "--yes" in done.err
    assert snapshot(package) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "/nowhere", "--backport", "v0.5.20"), "there is no such target"),
        (("--target", "/tmp"), "--backport v0.5.20"),
        (("--target", "/tmp", "--status", "--verify"), "one thing at a time"),
        (("--target", "/tmp", "--emit", "patch", "--backport", "v0.5.20"), "diff or dockerfile"),
        (("x.yaml", "--target", "/tmp", "--backport", "v0.5.20"), "not both"),
    ],
)
def test_what_makes_no_sense_is_told(arguments: tuple[str, ...], said: str) -> None:
    done = Done(*arguments)
    assert done.code == 2
    assert said in done.err


def test_a_folder_without_a_package_is_refused(tmp_path: Path) -> None:
    done = Done("--target", str(tmp_path), "--backport", "v0.5.20")
    assert done.code == 30
    assert done.out.startswith("REFUSED")


def test_the_diff_and_the_dockerfile_do_what_apply_does(package: Path, tmp_path: Path) -> None:
    target = ("--target", str(package), "--backport", "v0.5.20")
    diff = Done(*target, "--emit", "diff")
    docker = Done(*target, "--emit", "dockerfile")
    assert (diff.code, docker.code) == (0, 0), diff.err + docker.err
    assert Done(*target, "--apply", "--yes").code == 0

    patched = install("0.5.20", tmp_path / "patched")
    patch(diff.out.encode(), patched.parent)
    assert contents(patched) == contents(package)

    built = install("0.5.20", tmp_path / "built")
    (built / "__init__.py").write_text("")
    before = snapshot(built)
    head, _, rest = docker.out.partition("RUN ${PYTHON} - <<'PDGUARD'\n")
    script, end, after = rest.partition("\nPDGUARD\n")
    assert (end, after) == ("\nPDGUARD\n", "")
    assert "FROM ${IMAGE}" in head
    said = _run_in_image(script, built.parent)
    assert "applied" in said.stdout, said.stdout + said.stderr
    assert said.returncode == 0
    mine, theirs = contents(built), contents(package)
    mine.pop("__init__.py"), theirs.pop("__init__.py", None)
    assert mine == theirs
    assert Done("--target", str(built), "--rollback", "--yes").code == 0
    assert snapshot(built) == before

    other = install("0.5.19", tmp_path / "other")
    refused = _run_in_image(script, other.parent)
    assert refused.returncode == 31
    assert "refused" in refused.stdout


def _run_in_image(script: str, site: Path) -> subprocess.CompletedProcess[str]:
    """What the RUN of the Dockerfile does, with `site` as the image's packages."""
    return subprocess.run(
        [sys.executable, "-S", "-"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        timeout=120,
    )


def test_what_was_hardened_is_no_disagreement_and_nothing_half_done(package: Path) -> None:
    assert Done("--target", str(package), "--backport", "v0.5.20", "--apply", "--yes").code == 0
    read = open_target(str(package)).read
    matcher = Operator(Wanted()).matcher
    for hardened, clean in ((hardened_fixes(read, matcher.watched()), True), (frozenset[str](), False)):
        facts = FactSet()
        facts.add("version", "0.5.20", Grade.CLAIMED, "source", "version file")
        add_fix_facts(facts, matcher.find(read), hardened)
        assert (facts.items("source_disagrees") == ()) is clean
        assert (facts.items("fixes_partial") == ()) is clean
        assert (set(facts.items("hardened") or ()) >= CORE) is clean
    assert hardened_fixes(open_target(str(wheel("0.5.20"))).read, matcher.watched()) == frozenset()


# --- what a breaker found


def test_a_smaller_set_on_a_hardened_package_says_what_it_takes_out(package: Path) -> None:
    target = ("--target", str(package), "--backport", "v0.5.20")
    assert Done(*target, "--apply", "--yes").code == 0
    plan = Done(*target, "--only", "38935,41128", "--no-diff")
    assert "43719  TAKEN OUT" in plan.out
    assert "srt/disaggregation/mooncake/conn.py" in plan.out
    assert "back to the original" in plan.out
    assert "--only 38935 --only 41128 --apply" in plan.out
    assert Done(*target, "--only", "38935", "--except", "38935").code == 2


def test_an_interrupted_run_is_taken_back_by_the_next_apply(package: Path) -> None:
    stock = contents(package)
    target = ("--target", str(package), "--backport", "v0.5.20")
    code = (
        "import os, sys, pdguard.harden.node.steps as steps\n"
        "from pdguard.harden.node import main\n"
        "left = [60]\n"
        "def hook(*_):\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os._exit(9)\n"
        "steps.hook = hook\n"
        "main.run(sys.stdin.buffer.read())\n"
    )
    operator = Operator(Wanted("0.5.20"))
    transport = LocalTransport()
    plan = operator.plan(Site("", str(package)), transport).plan
    assert plan is not None
    label = SetLabel(plan.id, plan.base, "pdguard", plan.fixes)
    request = {"do": "apply", "root": str(package), **apply_request(label, plan.changes)}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(request).encode(), check=False, capture_output=True
    )
    assert done.returncode == 9, done.stderr
    assert Done(*target).out.startswith("INTERRUPTED")
    assert Done(*target, "--apply", "--yes").code == 0
    assert contents(package) != stock
    assert Done("--target", str(package), "--rollback", "--yes").code == 0
    assert contents(package) == stock


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_auto_tells_the_base_by_what_the_package_holds(tmp_path: Path, version: str) -> None:
    package = install(version, tmp_path)
    for name in ("version.py", "_version.py"):
        (package / name).unlink(missing_ok=True)
    for folder in tmp_path.glob("*.dist-info"):
        shutil.rmtree(folder)
    for said in ((), ("--backport", "v0.5.21")):
        done = Done("--target", str(package), *said, "--auto", "--format", "json")
        assert done.code == 0, done.out + done.err
        assert done.json["packages"][0]["plan"]["base"] == version
    wrong = Done("--target", str(package), "--backport", "v0.5.21")
    assert wrong.code == 30
    assert "--auto looks at what it holds" in wrong.out


def test_an_interpreter_that_proves_nothing_takes_it_back(package: Path) -> None:
    before = contents(package)
    done = Done(
        "--target", str(package), "--backport", "v0.5.20", "--apply", "--yes", "--python", sys.executable
    )
    assert done.code == 31, done.out
    assert "proves nothing" in done.out
    assert contents(package) == before


def test_verify_of_a_package_that_nobody_hardened_is_no_success(stock: Path) -> None:
    done = Done("--target", str(stock), "--verify")
    assert (done.code, done.out.split()[0]) == (12, "STOCK")


def test_the_hold_has_to_be_set_and_the_plan_says_so(stock: Path) -> None:
    done = Done("--target", str(stock), "--backport", "v0.5.20", "--no-diff")
    assert "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1 on prefill and decode" in done.out


def test_a_result_that_cannot_be_written_is_told_before_anything_is_changed(package: Path) -> None:
    before = contents(package)
    done = Done("--target", str(package), "--backport", "v0.5.20", "--apply", "--yes", "-o", "/nowhere/x")
    assert done.code == 2
    assert contents(package) == before


def test_the_dockerfile_of_a_hardened_package_is_for_a_stock_one(package: Path, stock: Path) -> None:
    target = ("--backport", "v0.5.20", "--emit", "dockerfile")
    fresh = Done("--target", str(stock), *target).out
    assert Done("--target", str(package), "--backport", "v0.5.20", "--apply", "--yes").code == 0
    assert Done("--target", str(package), *target).out == fresh


def test_ctrl_c_puts_everything_back(package: Path) -> None:
    before = contents(package)
    sleeper = package.parent / "python"
    sleeper.write_text(f'#!/bin/sh\ncase "$*" in *importlib*) exec {sys.executable} "$@";; esac\nsleep 600\n')
    sleeper.chmod(0o755)
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "pdguard", "harden", "--target", str(package), "--backport", "v0.5.20"),
            *("--apply", "--yes", "--python", str(sleeper)),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell starts what it runs in the background with SIGINT ignored, and so this test may be run.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "contracts in" in line:
            break
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 130, said
    assert "putting every file back" in said
    assert contents(package) == before


def test_the_plan_says_whether_ranks_agree(package: Path) -> None:
    target = ("--target", str(package), "--backport", "v0.5.20", "--no-diff")
    whole, without = Done(*target), Done(*target, "--except", "X1")
    assert "they agree (X1)" in whole.out
    assert "not in this set" not in whole.out
    assert "that they agree (X1) is not in this set" in without.out
