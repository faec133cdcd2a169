"""Whatever /proc holds, the script answers, and a planted secret stays where it is."""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdguard.node import argline, main, names, process, procfs, sockets
from pdguard.node.bundle import MODULES
from tests.node.tree import ANY, HOLD, LAUNCH, Tree, engine_tree, title

SECRET = "sk-planted-secret"


def test_only_the_standard_library_is_imported() -> None:
    for name in MODULES:
        text = Path(main.__file__).with_name(f"{name}.py").read_text()
        for node in ast.walk(ast.parse(text, feature_version=(3, 10))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                own = module in ("pdguard.node", *(f"pdguard.node.{m}" for m in MODULES))
                assert own or module.split(".")[0] in sys.stdlib_module_names, (name, module)


def test_nothing_is_written(tmp_path: Path) -> None:
    tree = engine_tree(tmp_path)
    before = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*")}
    tree.engine()
    assert {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_secrets_do_not_leave_the_node(tmp_path: Path) -> None:
    argv = [
        *LAUNCH,
        "--api-key",
        SECRET,
        f"--admin-api-key={SECRET}",
        "--context-length",
        SECRET,
        f"-x{SECRET}",
    ]
    env = {HOLD: "1", "OPENAI_API_KEY": SECRET, "SGLANG_API_KEY": SECRET}
    tree = engine_tree(tmp_path, env, argv)
    assert SECRET not in repr(tree.engine())


@pytest.mark.parametrize(
    ("script", "hold", "state"),
    [
        (f"{HOLD}=on exec python3 -m sglang.launch_server --page-size 64", "on", "read"),
        (f"cd /x && export {HOLD}=on\npython3 -m sglang.launch_server --page-size \\\n 64", "on", "read"),
        (f"env {HOLD}='on' sglang serve --page-size 64 2>&1 | tee log", "on", "read"),
        (f"{HOLD}=$H python3 -m sglang.launch_server --page-size 64", None, "unreadable"),
        ("source env.sh; sglang serve m --page-size 64", None, "unreadable"),
        ("set -a; . ./env; exec sglang serve --page-size 64", None, "unreadable"),
    ],
)
def test_shells(tmp_path: Path, script: str, hold: str | None, state: str) -> None:
    tree = engine_tree(tmp_path, {"PATH": "/bin"}, ["bash", "-euo", "pipefail", "-lc", script])
    found = tree.engine()["process"]
    assert found["argv"]["args"][-2:] == ["--page-size", "64"] or "2" in script
    assert "--page-size" in found["argv"]["args"]
    assert found["env"]["state"] == state
    assert found["env"]["values"].get(HOLD) == hold


def test_unclosed_quote_is_not_guessed_at() -> None:
    assert argline.command(["sh", "-c", "python -m sglang.launch_server 'x"]).program == ""


def test_shell_variable_is_marked() -> None:
    found = argline.command(["sh", "-c", "python -m sglang.launch_server --context-length $CTX"])
    assert argline.mask(found.args) == ["--context-length", "$?"]


def test_config_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "work").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "real.yaml").write_text(f"context-length: 4096\napi-key: {SECRET}\nkv-canary: {SECRET}\n")
    (root / "work" / "link.yaml").symlink_to("/etc/real.yaml")  # absolute: inside that root, not in ours
    tree = Tree(tmp_path / "proc")
    tree.add(20, 1, [*LAUNCH, "--config", "link.yaml"], {}, listens=[(ANY, 30000)], root=root)
    found = tree.engine()["process"]["config"]
    assert found == {"how": "read", "rows": [["context-length", "4096"], ["?", "?"], ["kv-canary", "?"]]}
    for extra, how in (
        (["--config=link.yaml"], "ignored"),
        (["--conf", "link.yaml"], "ignored"),
        (["--config", "no.yaml"], "unreadable"),
        ([], "none"),
    ):
        run = process.configuration(str(tmp_path / "proc"), 20, [*LAUNCH, *extra])
        assert run["how"] == how


@pytest.mark.parametrize(
    "text",
    [
        "{context-length: 1}",
        "<<: *base",
        'a: "open\ncontext-length: 1"',
        "a: [1,\n2]",
        "\tx: 1",
        "x: 1\n---\ny: 2",
        "just words",
        b"\xff\xfe",
    ],
)
def test_config_that_is_more_than_plain_lines_is_unreadable(text: str | bytes) -> None:
    assert process.config_rows(text if isinstance(text, bytes) else text.encode()) is None


def test_config_with_nested_values() -> None:
    text = "---\n# c\nmodel-path: /m\nlora-paths:\n- a\n- b\n"
    text += "extra:\n  api-key: x\n  page-size: 3\npage-size: 64 # 1\n"
    rows = process.config_rows(text.encode())
    assert rows == [["?", "?"], ["?", "?"], ["?", "?"], ["page-size", "64"]]


def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert procfs.read(str(tmp_path / "pipe"), 10)[0] is None
    assert procfs.read("/dev/zero", 10) == (None, "OSError")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "7" / "root").mkdir(parents=True)
    (tmp_path / "7" / "root" / "a").symlink_to("/b")
    (tmp_path / "7" / "root" / "b").symlink_to("/a")
    assert procfs.inside(str(tmp_path), 7, "/a") == ""
    inside = procfs.inside(str(tmp_path), 7, "/../../../etc/passwd")
    assert inside == str(tmp_path / "7/root/etc/passwd")


def test_vanished_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = engine_tree(tmp_path)
    real = process.describe

    def describe(proc: str, procs: Any, pid: int) -> Any:
        found = real(proc, procs, pid)
        (tmp_path / "20" / "stat").unlink()
        return found

    monkeypatch.setattr(process, "describe", describe)
    assert tree.engine()["status"] == "gone"


def test_time_is_bounded(tmp_path: Path) -> None:
    engine_tree(tmp_path)
    found = main.answer({"engines": [{"name": "e", "port": 30000}], "proc": str(tmp_path), "seconds": 1e-9})
    assert found["late"] is True
    assert found["engines"][0]["status"] == "unreadable"


def test_loops_in_the_parent_chain(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(20, 21, LAUNCH, {}, listens=[("::1", 30000)])
    tree.add(21, 20, title("sglang::scheduler"), b"\0")
    assert tree.engine()["process"]["chain"] == [20, 21]


BYTES = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            [
                *(w.encode() for w in LAUNCH),
                b"sh",
                b"-c",
                b"sglang::scheduler",
                b"--config",
                b"\xff",
                SECRET.encode(),
                b"sglang serve '",
                b"--api-key",
                b"--dist-init-addr",
                b"--node-rank",
                b"1",
                b"$X",
            ]
        ),
        max_size=10,
    ).map(b"\0".join),
)
ENVIRON = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.just(b"\0" * 50),
    st.lists(st.sampled_from([f"{HOLD}=on".encode(), b"KEY=" + SECRET.encode(), b"=", HOLD.encode()])).map(
        b"\0".join
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), BYTES, ENVIRON, st.booleans(), st.booleans()), max_size=7),
    st.binary(max_size=40),
)
def test_any_process_table(rows: list[tuple[int, bytes, bytes | None, bool, bool]], junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder) / "proc")
        for i, (ppid, cmdline, environ, listens, other) in enumerate(rows):
            net = "net:[2]" if other else "net:[1]"
            tree.add(i + 1, ppid, cmdline, environ, net=net, listens=[(ANY, 30000)] if listens else None)
            if i % 3 == 2:
                (tree.path / str(i + 1) / "stat").write_bytes(junk)
        ask = [
            {"name": "e", "port": 30000, "host": "10.0.0.1"},
            {"name": "f", "follower": True, "port": None},
        ]
        found = tree.ask(ask, [{"name": "r", "port": 30000}, {"name": "x"}])
        assert SECRET not in repr(found)
        statuses = {item["status"] for item in found["engines"] + found["routers"]}
        assert statuses <= {"found", "none", "other", "ambiguous", "unreadable", "gone"}


@given(st.binary(max_size=300))
def test_any_socket_table(data: bytes) -> None:
    sockets.parse_listeners(b"head\n" + data, "net:[1]", 1)


@given(st.binary(max_size=300))
def test_any_stat_and_config(data: bytes) -> None:
    procfs.parse_stat(data)
    rows = process.config_rows(data)
    assert rows is None or all(a == "?" or "--" + a in names.OPTIONS for a, _ in rows)


@given(st.text(max_size=200))
def test_any_shell_text(text: str) -> None:
    argline.command(["bash", "-c", text])
