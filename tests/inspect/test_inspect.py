"""`pdguard inspect` on real packages: wheels, unpacked trees, edited trees, a running process."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pdguard._bundle import bundled
from pdguard.errors import InputError
from pdguard.fingerprint.report import Inspection
from pdguard.fingerprint.targets import open_target
from pdguard.inspection import inspect_target
from pdguard.policy.loader import load_checks
from pdguard.policy.model import Status
from tests.wheels import wheel

CHECKS = load_checks(bundled("checks"))
FOLDERS = (
    "sglang/srt/disaggregation/",
    "sglang/srt/managers/",
    "sglang/srt/observability/",
    "sglang/srt/mem_cache/",
)


def inspected(target: str | Path, backend: str = "mooncake") -> Inspection:
    return inspect_target(open_target(str(target)), backend, CHECKS)


def fails(inspection: Inspection) -> set[str]:
    return {f.check for f in inspection.findings if f.status is Status.FAIL}


def states(inspection: Inspection) -> dict[str, str]:
    return {f.fix.id: f.state.value for f in inspection.fixes}


def unpacked(version: str, folder: Path) -> Path:
    """The files of a release that matter, as an unpacked image has them."""
    site = folder / "usr" / "lib" / "python3" / "site-packages"
    with zipfile.ZipFile(wheel(version)) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and (name.startswith(FOLDERS) or name.count("/") <= 2):
                archive.extract(name, site)
    return site / "sglang"


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("version", "backend", "worst"),
    [
        ("0.5.18", "mooncake", "critical"),
        ("0.5.19", "mooncake", "critical"),
        ("0.5.20", "mooncake", "high"),
        ("0.5.21", "mooncake", "high"),
        ("0.5.22", "mooncake", "medium"),
        ("0.5.22", "nixl", "high"),
        ("0.5.22", "mori", "high"),
        ("0.5.23", "mooncake", None),
        ("0.5.23", "nixl", None),
        ("0.5.23", "mori", None),
    ],
)
def test_releases(version: str, backend: str, worst: str | None) -> None:
    found = inspected(wheel(version), backend)
    assert found.version == version
    failing = [f.severity for f in found.findings if f.status is Status.FAIL]
    assert (max(failing).label if failing else None) == worst
    assert not [f for f in found.findings if f.status is Status.UNKNOWN and f.check.startswith("fix")]


@pytest.mark.wheels
def test_a_tree_is_judged_like_its_wheel(tmp_path: Path) -> None:
    package = unpacked("0.5.21", tmp_path)
    expected = states(inspected(wheel("0.5.21")))
    for target in (package, package.parent, tmp_path):
        assert states(inspected(target)) == expected


@pytest.mark.wheels
def test_a_reverted_fix_is_seen_and_disagrees_with_the_version(tmp_path: Path) -> None:
    package = unpacked("0.5.22", tmp_path)
    before = inspected(package)
    file = package / "srt" / "disaggregation" / "utils.py"
    prefill = package / "srt" / "disaggregation" / "prefill.py"
    text = prefill.read_text("utf-8")
    assert "is_unadmitted_reject(" in text
    assert file.exists()
    # A hand that undoes the door: the call stays imported and is never made.
    prefill.write_text(text.replace("is_unadmitted_reject(req)", "False"), "utf-8")
    after = inspected(package)
    assert states(before)["38935"] == "present"
    assert states(after)["38935"] in ("partial", "absent", "unknown")
    assert "fix 38935" in {f.check for f in after.findings if f.status is not Status.PASS}


@pytest.mark.wheels
def test_command_gives_json_and_exit_codes() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pdguard", "inspect", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    old, new = str(wheel("0.5.19")), str(wheel("0.5.23"))
    done = run(old, "--format", "json")
    document = json.loads(done.stdout)
    assert done.returncode == 13
    assert document["schema"] == "pdguard.inspect/1"
    row = next(f for f in document["fixes"] if f["id"] == "38935")
    assert row["state"] == "absent"
    assert row["evidence"][0]["file"] == "srt/disaggregation/prefill.py"
    assert row["evidence"][0]["line"] > 1
    assert run(new).returncode == 0
    assert run(new).stdout.startswith("CLEAN")
    table = run(old, "--width", "80").stdout
    assert table.startswith("EXPOSED")
    assert max(map(len, table.splitlines()[1:])) <= 80
    assert run(old, "--backend", "carrier-pigeon").returncode == 2


@pytest.mark.parametrize("name", ["nothing", "empty", "text", "zip", "two"])
def test_what_is_no_package_is_told(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    if name == "empty":
        target.mkdir()
    elif name == "text":
        target.write_text("hello")
    elif name == "zip":
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("other/__init__.py", "")
    elif name == "two":
        for side in ("a", "b"):
            (target / side / "sglang" / "srt" / "disaggregation").mkdir(parents=True)
    with pytest.raises(InputError):
        open_target(str(target))


def test_a_process_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="no such process"):
        open_target("4194300")


def test_an_empty_package_is_unknown_never_clean(tmp_path: Path) -> None:
    (tmp_path / "sglang" / "srt" / "disaggregation").mkdir(parents=True)
    found = inspected(tmp_path)
    assert found.version is None
    assert fails(found) or any(f.status is Status.UNKNOWN for f in found.findings)
