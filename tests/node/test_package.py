"""Which package a process imports, and what is told about it, on fake processes."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from pdguard.node import files, package
from tests.node.package_tree import (
    DECODE,
    OLD,
    PLAIN_MOUNT,
    PREFILL,
    SITE,
    VENV,
    Machine,
    mapped,
)

RUST = "srt/rust_extensions/_server.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_site_packages_of_a_virtual_environment(machine: Machine) -> None:
    machine.package(SITE)
    machine.dist()
    machine.start()
    found = machine.source()
    assert (found["status"], found["kind"], found["via"]) == ("found", "site-packages", "site-packages")
    assert (found["version"], found["dist_version"]) == ("0.5.20", "0.5.20")
    assert found["record"] == ""
    assert found["differs"] == found["unlisted"] == []
    assert found["tree"] == {"whole": True, "files": 3, "differs": 0, "missing": 0, "extra": 0}
    digest = hashlib.sha256(f"x = 1\n# {PREFILL}\n".encode()).hexdigest()
    assert found["files"][0][:3] == [digest, len(f"x = 1\n# {PREFILL}\n"), OLD]
    assert found["files"][2] is None
    assert found["cover"] == "plain"
    assert str(machine.path) not in repr(found)
    assert "/opt" not in repr(found)


def test_pythonpath_comes_first(machine: Machine) -> None:
    machine.package(SITE)
    machine.package("/src/python")
    machine.env = {"PYTHONPATH": "/stubs:/src/python:/other", "PATH": f"{VENV}/bin"}
    machine.start()
    assert machine.source()["kind"] == "pythonpath"


@pytest.mark.parametrize("flags", [["-E"], ["-I"], ["-IB"], ["-sE", "-u"]])
def test_pythonpath_that_python_ignores(machine: Machine, flags: list[str]) -> None:
    machine.package(SITE)
    machine.package("/src/python")
    machine.env = {"PYTHONPATH": "/src/python", "PATH": f"{VENV}/bin"}
    machine.argv[1:1] = flags
    machine.start()
    assert machine.source()["kind"] == "site-packages"


def test_current_folder_comes_before_all(machine: Machine) -> None:
    machine.package(SITE)
    machine.package("/work", "y = 2\n")
    machine.start()
    found = machine.source()
    assert (found["kind"], found["via"]) == ("other", "first")
    machine.argv.insert(1, "-P")
    (machine.tree.path / "20" / "cmdline").write_bytes("\0".join(machine.argv).encode() + b"\0")
    assert machine.source()["kind"] == "site-packages"


def test_a_folder_that_is_no_package_is_passed_over(machine: Machine) -> None:
    """The folder of the checkout is itself called sglang, and Python looks on for a regular package."""
    (machine.root / "work/sglang/python").mkdir(parents=True)
    machine.package(SITE)
    machine.start()
    assert machine.source()["kind"] == "site-packages"


def test_changed_current_folder(machine: Machine) -> None:
    machine.package(SITE)
    machine.package("/elsewhere")
    machine.start(child_cwd="/elsewhere")
    found = machine.source()
    assert found["status"] == "unknown"
    assert "current folder has changed" in found["why"]


def test_changed_current_folder_without_a_package_does_not_matter(machine: Machine) -> None:
    machine.package(SITE)
    machine.start(child_cwd="/elsewhere")
    assert machine.source()["status"] == "found"


@pytest.mark.parametrize("env", [b"\0" * 40, b""])
def test_unreadable_environment_is_unknown(machine: Machine, env: bytes) -> None:
    machine.package(SITE)
    machine.env = env
    machine.start()
    found = machine.source()
    assert found["status"] == "unknown"
    assert "PYTHONPATH is not known" in found["why"]
    assert found["rust"]["parts"] == []


def test_mapped_library_is_hard_evidence(machine: Machine) -> None:
    where = machine.package(SITE)
    machine.write(f"{where}/{RUST}", "")
    machine.env = b"\0" * 40
    machine.start(maps=mapped(f"{where}/{RUST}"))
    found = machine.source()
    assert (found["status"], found["kind"], found["confirmed"]) == ("found", "site-packages", True)
    assert found["rust"] == {"read": True, "parts": ["server"], "replaced": False}


def test_mapped_library_overrules_the_rules(machine: Machine) -> None:
    machine.package(SITE)
    where = machine.package("/injected")
    machine.write(f"{where}/{RUST}", "")
    machine.start(maps=mapped(f"{where}/{RUST}", gone=True))
    found = machine.source()
    assert (found["kind"], found["via"]) == ("other", "mapped libraries")
    assert found["rust"]["replaced"] is True


def test_libraries_of_two_packages_are_ambiguous(machine: Machine) -> None:
    one, two = machine.package(SITE), machine.package("/src")
    machine.start(maps=mapped(f"{one}/{RUST}") + mapped(f"{two}/srt/mem_cache/rust_tree_core/mem_cache.so"))
    found = machine.source()
    assert found["status"] == "ambiguous"
    assert found["rust"]["parts"] == ["server", "tree_core"]


def test_editable_by_pth(machine: Machine) -> None:
    machine.package("/sgl-workspace/sglang/python")
    machine.write(f"{SITE}/__editable__.sglang-0.5.20.pth", "/sgl-workspace/sglang/python\n")
    machine.dist(direct_url__json='{"url": "file:///x", "dir_info": {"editable": true}}')
    git = "/sgl-workspace/sglang/.git"
    machine.write(f"{git}/HEAD", "ref: refs/heads/main\n")
    machine.write(
        f"{git}/packed-refs", f"# pack-refs with: peeled\n{'a' * 40} refs/heads/main\n^{'b' * 40}\n"
    )
    machine.start()
    found = machine.source()
    assert (found["kind"], found["via"], found["editable"]) == ("editable", ".pth", True)
    assert (found["revision"], found["revision_from"]) == ("a" * 40, "git")
    assert "no distribution" in found["record"]
    assert found["dist_version"] == "0.5.20"
    machine.write(f"{git}/refs/heads/main", "c" * 40 + "\n")
    assert machine.source()["revision"] == "c" * 40


def test_editable_by_finder(machine: Machine) -> None:
    where = machine.package("/sgl-workspace/sglang/python")
    name = "__editable___sglang_0_5_20_finder"
    machine.write(f"{SITE}/__editable__.sglang-0.5.20.pth", f"import {name}; {name}.install()\n")
    machine.write(f"{SITE}/{name}.py", f"MAPPING: dict[str, str] = {{'sglang': {where!r}}}\nimport sys\n")
    machine.start()
    found = machine.source()
    assert (found["kind"], found["via"]) == ("editable", "finder")
    machine.package(SITE)  # a finder of setuptools comes last
    assert machine.source()["kind"] == "site-packages"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.pth", "import sglang_hook; sglang_hook.go()\n", "runs code of its own"),
        ("x.pth", "import __editable___f; __editable___f.install()\n", "finder makes no sense"),
    ],
)
def test_import_hooks_are_not_guessed_at(machine: Machine, name: str, text: str, why: str) -> None:
    machine.write(f"{SITE}/{name}", text)
    if "hook" in text:
        machine.package(SITE)
    machine.start()
    found = machine.source()
    assert found["status"] == "unknown"
    assert why in found["why"]


def test_other_pth_code_does_not_matter(machine: Machine) -> None:
    machine.package(SITE)
    machine.write(f"{SITE}/distutils-precedence.pth", "import os; os.environ.get('X')\n")
    machine.write(f"{SITE}/binary.pth", b"\xff\xfe\0")
    machine.start()
    assert machine.source()["status"] == "found"


def test_without_a_virtual_environment(machine: Machine) -> None:
    machine.package("/usr/local/lib/python3.11/dist-packages")
    machine.package("/home/op/.local/lib/python3.11/site-packages", "user = 1\n")
    machine.argv[0] = "python3"
    machine.env = {"PATH": "/usr/local/bin:/usr/bin", "HOME": "/home/op"}
    machine.start()
    user = machine.source()["files"][0][0]
    machine.env = {"PATH": "/usr/bin", "HOME": "/home/op", "PYTHONNOUSERSITE": "1"}
    data = b"".join(f"{k}={v}".encode() + b"\0" for k, v in machine.env.items())
    (machine.tree.path / "20" / "environ").write_bytes(data)
    found = machine.source()
    assert found["status"] == "found"
    assert found["files"][0][0] != user


def test_another_python_than_argv_names(machine: Machine) -> None:
    machine.package(SITE)
    machine.argv[0] = "/usr/bin/python3.12"
    machine.write("/usr/bin/python3.12", "")
    machine.start()
    assert "not the one" in machine.source()["why"]


def test_nothing_found(machine: Machine) -> None:
    machine.start()
    assert machine.source()["status"] == "unknown"
    machine.write(f"{SITE}/sglang.py", "")
    assert "sglang.py" in machine.source()["why"]


def test_links_stay_in_the_root_of_the_process(machine: Machine, tmp_path: Path) -> None:
    machine.package("/data")
    (machine.root / SITE[1:] / "sglang").symlink_to("/data/sglang")
    machine.start()
    assert machine.source()["files"][0][1] > 0


def test_differences_to_record(machine: Machine) -> None:
    where = machine.package(SITE)
    machine.write(f"{where}/srt/managers/scheduler.py", "z = 1\n")
    machine.write(f"{where}/srt/other.py", "z = 1\n")
    machine.dist()
    machine.write(f"{where}/{PREFILL}", "x = 2\n# srt/disaggregation/prefill.py\n")  # same size
    (machine.root / where[1:] / DECODE).unlink()
    machine.write(f"{where}/srt/other.py", "z = 10\n")
    machine.write(f"{where}/srt/new.py", "")
    machine.start()
    found = machine.source()
    assert found["differs"] == [PREFILL, DECODE]
    assert found["tree"] == {"whole": True, "files": 5, "differs": 2, "missing": 1, "extra": 1}


def test_two_distributions_have_no_record(machine: Machine) -> None:
    machine.package(SITE)
    machine.dist()
    machine.dist(version="0.5.19")
    machine.start()
    found = machine.source()
    assert found["record"] == "2 distributions of this name"
    assert found["dist_version"] == ""


def test_mounts(machine: Machine) -> None:
    where = machine.package(SITE)
    lines = PLAIN_MOUNT.replace("ext4", "overlay")
    machine.start(mounts=lines)
    assert machine.source()["cover"] == "overlay"
    for pid in (20, 21):
        more = f"30 22 0:30 /host/src {SITE} rw - ext4 /dev/vda rw\n"
        more += f"31 22 0:31 /cm {where}/{PREFILL} ro - tmpfs t ro\n"
        (machine.tree.path / str(pid) / "mountinfo").write_text(lines + more)
    found = machine.source()
    assert found["cover"] == "bind"
    assert found["mounted"] == [PREFILL]


def pyc(source: bytes, flags: int, mtime: int = OLD // 10**9) -> bytes:
    head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little")
    if flags:
        return head + importlib.util.source_hash(source)
    return head + mtime.to_bytes(4, "little") + len(source).to_bytes(4, "little")


def test_compiled_files(machine: Machine) -> None:
    where = machine.package(SITE)
    source = f"x = 1\n# {PREFILL}\n".encode()
    file = f"{where}/srt/disaggregation/__pycache__/prefill.cpython-311.pyc"
    machine.write(file, pyc(source, 0))
    machine.write(file.replace("311", "310"), b"of another Python")
    machine.start()
    none: dict[str, list[str]] = {"stale": [], "unchecked": [], "older": [], "lone": []}
    for data, expected in (
        (pyc(source, 0), none),
        (pyc(source, 0, 5), {**none, "stale": [PREFILL]}),
        (pyc(source + b"#", 0), {**none, "stale": [PREFILL]}),
        (pyc(source, 1), none),
        (pyc(b"other", 1), {**none, "unchecked": [PREFILL]}),
        (pyc(b"other", 3), none),
        (b"junk", none),
    ):
        machine.write(file, data)
        assert machine.source()["pyc"] == expected


def test_compiled_form_alone_and_extension_in_its_place(machine: Machine) -> None:
    where = machine.package(SITE)
    (machine.root / where[1:] / PREFILL).rename(machine.root / where[1:] / (PREFILL + "c"))
    machine.write(f"{where}/srt/disaggregation/decode.cpython-311-x86_64-linux-gnu.so", "")
    machine.start()
    found = machine.source()
    assert found["files"][0] == "only its compiled form is there"
    assert found["pyc"]["lone"] == [PREFILL]
    assert "extension" in found["files"][1]


def test_newer_than_the_process(machine: Machine) -> None:
    """The fake process began long ago; a kept modification time does not hide the change of the inode."""
    where = machine.package(SITE)
    machine.write(f"{where}/srt/new.py", "", mtime=2_000_000_000 * 10**9)
    machine.start()
    newer = machine.source()["newer"]
    assert newer["mtime"] == ["srt/new.py"]
    assert PREFILL in newer["ctime"]


def test_start_of_this_process() -> None:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    begun = package.started("/proc", ticks)
    assert begun is not None
    probe = os.stat("/proc/self").st_ctime_ns
    assert abs(probe - begun) < 3600 * 10**9


def test_pipe_and_permission(machine: Machine) -> None:
    where = machine.package(SITE)
    (machine.root / where[1:] / PREFILL).unlink()
    os.mkfifo(machine.root / where[1:] / PREFILL)
    machine.write(f"{where}/{DECODE}", b" " * (files.MAX_SOURCE + 1))
    machine.start()
    assert machine.source()["files"][:2] == ["OSError", "larger than 4 MiB"]


def contents(machine: Machine, **change: Any) -> Any:
    source = machine.source()
    row = source["files"][0]
    digest = row[0] if isinstance(row, list) else "0" * 64
    item = {"pid": 20, "path": PREFILL, "sha256": digest, **change}
    return machine.ask(contents=[item])["contents"]


def test_contents(machine: Machine) -> None:
    machine.package(SITE)
    machine.start()
    ((digest, data, why),) = contents(machine)
    raw = zlib.decompress(base64.b64decode(data))
    assert hashlib.sha256(raw).hexdigest() == digest
    assert why == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sha256": "0" * 64}, "it has changed since"),
        ({"path": "../../../../etc/passwd"}, "not a file that is watched"),
        ({"path": "/etc/passwd"}, "not a file that is watched"),
        ({"path": "srt/__init__.py"}, "not a file that is watched"),
        ({"pid": 1}, "no engine has this process id"),
        ({"pid": 99}, "no engine has this process id"),
    ],
)
def test_contents_refused(machine: Machine, change: dict[str, Any], why: str) -> None:
    machine.package(SITE)
    machine.start()
    assert contents(machine, **change)[0][1:] == [None, why]


def test_traversal_that_is_called_watched_is_refused(machine: Machine) -> None:
    machine.package(SITE)
    machine.write("/etc/secret.py", "secret")
    machine.start()
    path = "../../../../../../etc/secret.py"
    item = {"pid": 20, "path": path, "sha256": hashlib.sha256(b"secret").hexdigest()}
    found = machine.ask(source={"files": [path]}, contents=[item])
    assert found["contents"][0][1] is None
    assert found["engines"][0]["source"]["files"] == ["not a path below the package"]


def test_link_to_what_is_no_source_is_refused(machine: Machine) -> None:
    where = machine.package(SITE)
    machine.write("/etc/shadow", "secret")
    (machine.root / where[1:] / PREFILL).unlink()
    (machine.root / where[1:] / PREFILL).symlink_to("/etc/shadow")
    machine.start()
    assert contents(machine)[0][1:] == [None, "a link to something that is no Python file"]


def test_contents_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_RAW", 10)
    machine.package(SITE)
    machine.start()
    rows = machine.source()["files"]
    items = [{"pid": 20, "path": p, "sha256": r[0]} for p, r in zip((PREFILL, DECODE), rows, strict=False)]
    found = machine.ask(contents=[*items, 7, {"pid": "20"}])["contents"]
    assert [row[2] for row in found] == ["", "time ran out"]


def test_an_exception_costs_only_the_source(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.package(SITE)
    machine.start()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(files, "walk", fail)
    found = machine.ask()["engines"][0]
    assert found["status"] == "found"
    assert found["source"]["why"] == "its source could not be read (ZeroDivisionError)"


def test_nothing_is_asked_nothing_is_told(machine: Machine) -> None:
    machine.package(SITE)
    machine.start()
    assert "source" not in machine.ask(source=None)["engines"][0]


def test_nothing_is_written(machine: Machine) -> None:
    machine.package(SITE)
    machine.dist()
    machine.start()
    before = {p: (p.lstat().st_mtime_ns, p.lstat().st_ctime_ns) for p in machine.path.rglob("*")}
    machine.source()
    assert {p: (p.lstat().st_mtime_ns, p.lstat().st_ctime_ns) for p in machine.path.rglob("*")} == before
