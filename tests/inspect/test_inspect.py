"""`pdguard inspect` on real packages: wheels, unpacked trees, edited trees, a running process."""

from __future__ import annotations

import json
import py_compile
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


def small_tree(folder: Path) -> Path:
    """A package with one watched file in it, which is enough to ask what Python would run in its place."""
    package = folder / "sglang"
    (package / "srt" / "disaggregation").mkdir(parents=True)
    (package / "srt" / "disaggregation" / "prefill.py").write_text("x = 1\n")
    (package / "_version.py").write_text("__version__ = version = '0.5.22'\n")
    return package


def reads(target: Path, file: str = "srt/disaggregation/prefill.py") -> str:
    try:
        found = open_target(str(target)).read(file)
    except LookupError as error:
        return str(error.args[0])
    return "nothing" if found is None else found[1]


@pytest.mark.parametrize("name", ["prefill.so", "prefill.abi3.so", "prefill.cpython-312-x86_64-linux-gnu.so"])
def test_an_extension_that_stands_before_the_file(tmp_path: Path, name: str) -> None:
    package = small_tree(tmp_path)
    (package / "srt" / "disaggregation" / name).write_bytes(b"")
    assert "compiled extension" in reads(package)


def test_a_package_that_stands_before_the_file(tmp_path: Path) -> None:
    package = small_tree(tmp_path)
    (package / "srt" / "disaggregation" / "prefill").mkdir()
    (package / "srt" / "disaggregation" / "prefill" / "__init__.py").write_text("")
    assert "package of the same name" in reads(package)


def test_bytecode_that_runs_unchecked(tmp_path: Path) -> None:
    package = small_tree(tmp_path)
    file = package / "srt" / "disaggregation" / "prefill.py"
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert reads(package) == "x = 1\n"
    file.write_text("x = 2\n")
    assert "unchecked" in reads(package)


def test_what_is_there_in_compiled_form_only_is_not_nothing(tmp_path: Path) -> None:
    package = small_tree(tmp_path)
    file = package / "srt" / "disaggregation" / "prefill.py"
    py_compile.compile(str(file), cfile=str(file.with_suffix(".pyc")))
    file.unlink()
    assert "compiled form" in reads(package)
    command = [sys.executable, "-m", "pdguard", "inspect", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no watched file" in done.stderr


def test_links_in_an_image_lead_into_the_image(tmp_path: Path) -> None:
    image = tmp_path / "image"
    package = small_tree(image / "usr" / "lib" / "site-packages")
    (image / "etc").mkdir()
    file = package / "srt" / "disaggregation" / "prefill.py"
    elsewhere = image / "opt" / "real.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text("in_the_image = 1\n")
    file.unlink()
    file.symlink_to("/opt/real.py")
    assert reads(image) == "in_the_image = 1\n"


def test_a_package_behind_a_link_counts(tmp_path: Path) -> None:
    one, two = small_tree(tmp_path / "a"), small_tree(tmp_path / "b" / "build")
    site = tmp_path / "b" / "dist-packages"
    site.mkdir()
    (site / "sglang").symlink_to(one)
    with pytest.raises(InputError, match="2 sglang packages"):
        open_target(str(tmp_path / "b"))
    assert open_target(str(two)).version == "0.5.22"


def test_the_placeholder_version_gives_way_to_metadata(tmp_path: Path) -> None:
    package = small_tree(tmp_path)
    (package / "_version.py").write_text("__version__ = '0.0.0.dev0'\n")
    assert open_target(str(package)).version == "0.0.0.dev0"
    (tmp_path / "sglang-0.5.23.dist-info").mkdir()
    assert open_target(str(package)).version == "0.5.23"


def test_no_name_and_odd_digits_are_no_target() -> None:
    for text in ("", " ", "٣"):
        with pytest.raises(InputError):
            open_target(text)
