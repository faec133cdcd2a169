"""The whole sets of the newer bases on the files of real releases: in and out again, and killed midway."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pdguard.harden.agent import apply_request
from pdguard.harden.answers import SetLabel
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER
from pdguard.harden.node import main
from pdguard.harden.operate import Operator, Wanted
from pdguard.harden.results import Site
from pdguard.transport.local import LocalTransport
from tests.fingerprint.trees import CATALOGUE
from tests.harden.command import Done
from tests.harden.node_tree import killed_at
from tests.harden.packages import contents, install, patch, snapshot

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

BASES = ("0.5.21", "0.5.22", "0.5.23")
CALLS = 12
"""So many of a run's writing calls are tried; every single one is on a small tree (test_node_faults)."""


@pytest.mark.parametrize("base", BASES)
def test_in_recognised_and_out_again(base: str, tmp_path: Path) -> None:
    package = install(base, tmp_path / "site-packages")
    before = snapshot(package.parent)
    target = ("--target", str(package))
    diff = Done(*target, "--backport", f"v{base}", "--emit", "diff")
    assert diff.code == 0, diff.err
    assert snapshot(package.parent) == before

    done = Done(*target, "--backport", f"v{base}", "--apply", "--yes")
    assert done.code == 0, done.out + done.err
    assert {p.name for p in (package / PAYLOAD_FOLDER).glob("*.py")} == set(load_payload(CATALOGUE))
    of_base = {b.fix for b in load_backports(CATALOGUE) if b.base == base}
    status = Done(*target, "--status", "--format", "json").json["packages"][0]
    assert set(status["fixes"]) == of_base
    verify = Done(*target, "--verify")
    assert verify.code == 0, verify.out
    assert f"fingerprints: {len(of_base)} of {len(of_base)} fixes are recognised" in verify.out

    patched = install(base, tmp_path / "patched")
    patch(diff.out.encode(), patched.parent)
    assert contents(patched) == contents(package)

    assert Done(*target, "--rollback", "--yes").code == 0
    assert snapshot(package.parent) == before


def request(base: str, package: Path) -> dict[str, Any]:
    """What the tool asks of the node where `package` is."""
    plan = Operator(Wanted(base)).plan(Site("", str(package)), LocalTransport()).plan
    assert plan is not None
    label = SetLabel(plan.id, plan.base, "pdguard", plan.fixes)
    return {"do": "apply", "root": str(package), **apply_request(label, plan.changes)}


def test_killed_anywhere_it_is_wholly_old_or_wholly_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill does not lose what the kernel already has
    package = install("0.5.22", tmp_path / "site-packages")
    before, stock = snapshot(package.parent), contents(package)
    asked = request("0.5.22", package)
    calls = 1
    while killed_at(calls, lambda: main.answer(asked)):
        assert main.answer({"do": "rollback", "root": str(package)})["status"] in ("rolled-back", "unchanged")
        assert snapshot(package.parent) == before
        calls *= 2
    new = contents(package)
    assert calls > 60
    for number in range(1, calls, calls // CALLS):
        main.answer({"do": "rollback", "root": str(package)})
        assert contents(package) == stock
        killed_at(number, lambda: main.answer(asked))
        assert main.answer(asked)["status"] in ("applied", "unchanged")
        assert contents(package) == new
