"""The source part as it is piped, on real processes of a real virtual environment."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdguard.node.bundle import script
from pdguard.transport.interface import Json
from pdguard.transport.local import LocalTransport
from tests.node.package_tree import PREFILL
from tests.node.test_real import free_port, pythons, running

SERVER = """
import socket, sys, time
import sglang.srt.disaggregation.prefill
s = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
sys.stdout.write("up\\n"); sys.stdout.flush()
time.sleep(60)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True, with_pip=False)
    return folder


@pytest.fixture
def site(home: Path) -> Iterator[Path]:
    (folder,) = home.glob("lib/python*/site-packages")
    before = set(folder.iterdir())
    yield folder
    for new in set(folder.iterdir()) - before:
        subprocess.run(["rm", "-r", str(new)], check=True)


def package(folder: Path, mark: str) -> str:
    """A package whose watched file says where it is; gives the hash of that file."""
    (folder / "sglang/srt/disaggregation").mkdir(parents=True)
    for name in ("__init__.py", "srt/__init__.py", "srt/disaggregation/__init__.py"):
        (folder / "sglang" / name).write_text("")
    (folder / "sglang/launch_server.py").write_text(SERVER)
    (folder / "sglang" / PREFILL).write_text(f"MARK = {mark!r}\n")
    return hashlib.sha256((folder / "sglang" / PREFILL).read_bytes()).hexdigest()


@contextmanager
def engine(home: Path, cwd: Path, *flags: str, **env: str) -> Iterator[int]:
    port = free_port()
    args = [str(home / "bin/python"), *flags, "-m", "sglang.launch_server", "--port", str(port)]
    with running(args, cwd, {"PATH": "/usr/bin:/bin", "HOME": str(cwd), **env}):
        yield port


def ask(port: int, python: str = sys.executable, **more: Json) -> Any:
    request: dict[str, Json] = {
        "engines": [{"name": "e", "port": port, "host": "127.0.0.1"}],
        "source": {"files": [PREFILL]},
        **more,
    }
    return LocalTransport(python).run_script(script(), request, 30)


def source(port: int, python: str = sys.executable) -> Any:
    return ask(port, python)["engines"][0]["source"]


@pytest.mark.parametrize("python", pythons())
def test_site_packages(home: Path, site: Path, tmp_path: Path, python: str) -> None:
    digest = package(site, "site")
    with engine(home, tmp_path) as port:
        found = source(port, python)
    assert (found["status"], found["kind"]) == ("found", "site-packages")
    assert found["files"][0][0] == digest
    assert found["newer"] == {"ctime": [], "ctime_total": 0, "mtime": [], "mtime_total": 0}
    assert str(home) not in repr(found)


def test_pythonpath_and_current_folder(home: Path, site: Path, tmp_path: Path) -> None:
    package(site, "site")
    other = package(tmp_path / "other", "other")
    here = package(tmp_path / "here", "here")
    with engine(home, tmp_path, PYTHONPATH=str(tmp_path / "other")) as port:
        found = source(port)
        assert (found["kind"], found["files"][0][0]) == ("pythonpath", other)
    with engine(home, tmp_path / "here", PYTHONPATH=str(tmp_path / "other")) as port:
        found = source(port)
        assert (found["kind"], found["via"], found["files"][0][0]) == ("other", "first", here)


def test_editable(home: Path, site: Path, tmp_path: Path) -> None:
    digest = package(tmp_path / "python", "checkout")
    (site / "__editable__.sglang-0.5.20.pth").write_text(f"{tmp_path}/python\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(tmp_path)]
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "x"],
        ["gc", "-q"],
        ["pack-refs", "--all"],
    ):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    (tmp_path / "cwd").mkdir()
    with engine(home, tmp_path / "cwd") as port:
        found = source(port)
    assert (found["kind"], found["files"][0][0]) == ("editable", digest)
    assert (found["revision"], found["revision_from"]) == (head.strip(), "git")


def test_patched_after_start_with_its_time_kept(home: Path, site: Path, tmp_path: Path) -> None:
    package(site, "site")
    file = site / "sglang" / PREFILL
    with engine(home, tmp_path) as port:
        assert source(port)["newer"]["ctime"] == []
        time.sleep(0.7)
        info = file.stat()
        file.write_text(file.read_text().replace("site", "lie!"))
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
        found = source(port)
        assert found["newer"]["ctime"] == [PREFILL]
        assert found["newer"]["mtime"] == []
        file.write_text("MARK = 'longer than before'\n")
        found = source(port)
        assert found["newer"]["mtime"] == [PREFILL]


def test_stale_compiled_file_tells_of_a_patch_as_well(home: Path, site: Path, tmp_path: Path) -> None:
    package(site, "site")
    with engine(home, tmp_path) as port:  # the engine itself writes the .pyc of what it has imported
        assert list((site / "sglang/srt/disaggregation/__pycache__").glob("prefill.*.pyc"))
        assert source(port)["pyc"]["stale"] == []
        (site / "sglang" / PREFILL).write_text("MARK = 'longer than before'\n")
        assert source(port)["pyc"]["stale"] == [PREFILL]


def test_content_comes_back_only_while_it_is_the_same(home: Path, site: Path, tmp_path: Path) -> None:
    digest = package(site, "site")
    with engine(home, tmp_path) as port:
        pid = ask(port)["engines"][0]["process"]["pid"]
        items: list[Json] = [{"pid": pid, "path": PREFILL, "sha256": digest}]
        assert ask(port, contents=items)["contents"][0][1]
        (site / "sglang" / PREFILL).write_text("")
        assert ask(port, contents=items)["contents"][0][1:] == [None, "it has changed since"]


def test_the_rules_agree_with_the_engines_own_python(home: Path, site: Path, tmp_path: Path) -> None:
    """Python itself says which file it imports, in every order of places."""
    places = {"site": site, "path": tmp_path / "path", "cwd": tmp_path / "cwd", "pth": tmp_path / "pth"}
    (tmp_path / "cwd").mkdir()
    (site / "zz.pth").write_text(f"{tmp_path}/pth\n")
    for name in ("pth", "site", "path", "cwd"):
        package(places[name], name)
        for flags in ((), ("-I",), ("-E",), ("-P",)):
            with engine(home, tmp_path / "cwd", *flags, PYTHONPATH=str(tmp_path / "path")) as port:
                digest = source(port)["files"][0][0]
            told = subprocess.run(
                [
                    *(str(home / "bin/python"), *flags, "-c"),
                    "import sglang.srt.disaggregation.prefill as p; print(p.__file__)",
                ],
                check=True,
                capture_output=True,
                text=True,
                cwd=tmp_path / "cwd",
                env={"PYTHONPATH": str(tmp_path / "path")},
            )
            assert hashlib.sha256(Path(told.stdout.strip()).read_bytes()).hexdigest() == digest


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_bind_mount_over_a_file(home: Path, site: Path, tmp_path: Path) -> None:
    """In a mount namespace of the engine's own: from outside the path shows another file."""
    package(site, "site")
    patch = tmp_path / "patch.py"
    patch.write_text("MARK = 'mounted'\n")
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    port = free_port()
    line = f"mount --bind {patch} {site}/sglang/{PREFILL}"
    line += f" && exec {home}/bin/python -m sglang.launch_server --port {port}"
    with running(["unshare", "-m", "sh", "-c", line], tmp_path, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}):
        found = source(port)
    assert found["status"] == "found"
    assert found["mounted"] == [PREFILL]
    assert found["files"][0][0] == hashlib.sha256(patch.read_bytes()).hexdigest()
