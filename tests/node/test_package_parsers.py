"""What files say is never trusted: any bytes parse to something sane, and what was meant is found."""

from __future__ import annotations

import base64
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pdguard.node import bundle, files, pyenv, release
from pdguard.node.bundle import script
from tests.node.package_tree import PREFILL, SITE, Machine

HEX = st.text("0123456789abcdef", min_size=40, max_size=40)
NAME = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=12)
TEXT = st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda t: t.encode("utf-8", "replace")))


@given(TEXT)
@example(b"sglang/a.py,sha256=" + b"A" * 43 + b",9" * 20)
def test_any_record(data: bytes) -> None:
    for path, (digest, size) in release.parse_record(data).items():
        assert path.endswith(".py")
        assert len(digest) == 64
        assert size >= 0


@given(st.dictionaries(st.lists(NAME, min_size=1, max_size=4).map("/".join), st.binary(max_size=30)), TEXT)
def test_record_gives_what_was_written(sources: dict[str, bytes], junk: bytes) -> None:
    lines = []
    for path, source in sources.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
        lines.append(f"sglang/{path}.py,sha256={digest},{len(source)}")
    data = "\r\n".join(lines).encode() + b"\n" + junk.replace(b"sglang", b"")
    expected = {f"{p}.py": (hashlib.sha256(s).hexdigest(), len(s)) for p, s in sources.items()}
    assert release.parse_record(data) == expected


@given(TEXT)
def test_any_pyvenv(data: bytes) -> None:
    for name, value in pyenv.parse_pyvenv(data).items():
        assert name == name.strip()
        assert "\n" not in value


@given(TEXT)
def test_any_pth(data: bytes) -> None:
    found = pyenv.parse_pth(data, "sglang")
    assert all(f and "\0" not in f for f in found.folders)
    assert all(f.startswith("__editable__") for f in found.finders)


def test_pth() -> None:
    name = "__editable___a_finder"
    text = f"# sglang\n/src/python\n\nimport {name}; {name}.install()\n"
    text += "import os\nrelative\nimport x; y.install()\n"
    assert pyenv.parse_pth(text.encode(), "sglang") == pyenv.Pth(["/src/python", "relative"], [name], False)


@given(TEXT)
@example(b"MAPPING = {'a': 'b', 'c': 1}")
@example(b"MAPPING: dict")
@example(b"MAPPING = {[]: ''}")
@example(b"(" * 5000)
def test_any_finder(data: bytes) -> None:
    found = pyenv.parse_mapping(data)
    assert found is None or all(isinstance(v, str) for v in found.values())


@given(st.dictionaries(NAME, st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1))))
def test_finder_gives_what_was_written(mapping: dict[str, str]) -> None:
    text = f"from __future__ import annotations\nMAPPING: dict[str, str] = {mapping!r}\nNAMESPACES = {{}}\n"
    assert pyenv.parse_mapping(text.encode()) == mapping


@given(TEXT)
@example(b"ref: refs/heads/../../x")
@example(b"ref: /etc/passwd")
def test_any_head(data: bytes) -> None:
    revision, ref = pyenv.parse_head(data)
    assert len(revision) in (0, 40, 64)
    assert ref == "" or (ref.startswith("refs/") and ".." not in ref)


@given(HEX, st.lists(st.tuples(HEX, NAME)), TEXT)
def test_packed_refs(revision: str, others: list[tuple[str, str]], junk: bytes) -> None:
    lines = [f"{h} refs/tags/{n}" for h, n in others]
    data = "\n".join(["# pack-refs", *lines, f"{revision} refs/heads/main", f"^{revision}"]).encode()
    assert pyenv.parse_packed(data + b"\n" + junk.replace(b" ", b""), "refs/heads/main") == revision
    assert pyenv.parse_packed(junk, "refs/heads/main") in ("", revision)


@given(TEXT)
@example(b'{"dir_info": [], "vcs_info": 3}')
@example(b"[" * 100_000)
def test_any_direct_url(data: bytes) -> None:
    assert pyenv.parse_direct_url(data) == (False, "")


def test_direct_url() -> None:
    data = b'{"url": "x", "dir_info": {"editable": true}, "vcs_info": {"commit_id": "%s"}}' % (b"a" * 40)
    assert pyenv.parse_direct_url(data) == (True, "a" * 40)


@given(TEXT)
@example(b"1 2 3 / /x rw - ext4 / rw")
@example(b"- - - - - - - - - -")
def test_any_mountinfo(data: bytes) -> None:
    assert all(len(row) == 3 for row in release.parse_mounts(data))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_any_compiled_file(head: bytes, source: bytes) -> None:
    assert files.judge(head, source, os.stat(__file__)) in ("", "stale", "unchecked")


@given(st.lists(st.text(max_size=20), max_size=6))
def test_any_arguments(argv: list[str]) -> None:
    pyenv.launch(argv)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m sglang.launch_server --x", ("", "m", "sglang.launch_server")),
        ("/a/python3.11 -uIm x", ("uI", "m", "x")),
        ("python3 -X dev -W ignore -Wx -mx", ("", "m", "x")),
        ("python -E /venv/bin/sglang serve -m x", ("E", "script", "/venv/bin/sglang")),
        ("python --check-hash-based-pycs always -c pass", ("", "c", "pass")),
        ("python", ("", "c", "")),
        ("/venv/bin/sglang serve", None),
    ],
)
def test_launch(line: str, expected: tuple[str, str, str] | None) -> None:
    found = pyenv.launch(line.split())
    assert (None if found is None else tuple(found)) == expected


@given(st.dictionaries(st.sampled_from(["METADATA", "RECORD", "direct_url.json"]), TEXT), TEXT, TEXT, TEXT)
def test_any_garbage_is_answered(
    tmp_path_factory: pytest.TempPathFactory, dist: dict[str, bytes], pth: bytes, cfg: bytes, maps: bytes
) -> None:
    machine = Machine(tmp_path_factory.mktemp("m"))
    where = machine.package(SITE)
    for name, data in dist.items():
        machine.write(f"{SITE}/sglang-1.dist-info/{name}", data)
    machine.write(f"{SITE}/a.pth", pth)
    machine.write(f"{where}/_version.py", maps)
    machine.write("/opt/venv/pyvenv.cfg", cfg)
    machine.start(mounts="")
    (machine.tree.path / "21" / "maps").write_bytes(b"0-1 r 0 0 0 /sglang/srt/" + maps + b".so\n" + maps)
    (machine.tree.path / "21" / "mountinfo").write_bytes(maps)
    found = machine.ask()["engines"][0]
    assert found["status"] == "found"
    assert "could not be read (" not in found["source"]["why"]


def test_the_script_stays_small() -> None:
    assert len(script()) < 30_000
    assert PREFILL.encode() not in script()


def test_scripts_for_several_nodes_are_packed_at_once() -> None:
    """Threads that parse at the same time met a fault of CPython 3.11."""
    modules = [f"pdguard.node.{name}" for name in bundle.MODULES]
    with ThreadPoolExecutor(8) as pool:
        packed = set(pool.map(lambda _: bundle.pack(modules), range(24)))
    assert packed == {bundle.script()}
