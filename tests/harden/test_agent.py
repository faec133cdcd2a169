"""The control side against the real script in a bare Python, and against a node that talks nonsense."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest

from pdguard.errors import TransportError
from pdguard.harden import agent, bundle
from pdguard.harden.answers import Change, SetLabel
from pdguard.node.bundle import MODULES as SHARED
from pdguard.transport.interface import Json
from pdguard.transport.local import LocalTransport
from tests.harden.node_tree import NEW, Package, killed_at, sha

LABEL = SetLabel("core-1", "0.5.20", "0.1.0", ("38935", "36988"))
CHANGES = (
    Change("srt/plain.py", sha(b"x = 1\n"), b"x = 2\n"),
    Change("srt/old.py", sha(b"w = 1\n"), None),
    Change("srt/payload/__init__.py", None, b""),
)


class Fake:
    """A node that answers what it is told to."""

    name = "fake"

    def __init__(self, answer: Json) -> None:
        self.answer = answer
        self.requests: list[Mapping[str, Json]] = []

    def run_script(self, script: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        self.requests.append(request)
        return self.answer


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_the_script_is_small_and_of_the_standard_library() -> None:
    assert len(bundle.script()) < 42_000
    own = {f"pdguard.harden.node.{name}" for name in bundle.MODULES} | {f"pdguard.node.{m}" for m in SHARED}
    own |= {"pdguard.node", "pdguard.harden.node"}
    for name in bundle.MODULES:
        text = (resources.files("pdguard.harden.node") / f"{name}.py").read_text()
        for node in ast.walk(ast.parse(text, feature_version=(3, 10))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert module in own or module.split(".")[0] in sys.stdlib_module_names, (name, module)


def test_only_one_module_writes() -> None:
    """Whatever is written elsewhere could neither be counted nor broken."""
    writing = {"write", "mkdir", "unlink", "remove", "rename", "replace", "rmdir", "link", "symlink", "chmod"}
    writing |= {"chown", "utime", "setxattr", "removexattr", "makedirs", "truncate", "fsync"}
    for name in bundle.MODULES:
        text = (resources.files("pdguard.harden.node") / f"{name}.py").read_text()
        for node in ast.walk(ast.parse(text)):
            if name != "steps" and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("os", word) for word in writing}, (
                    name,
                    node.lineno,
                )


def test_the_whole_way(package: Package) -> None:
    node, root = LocalTransport(), str(package.root)
    before = package.snapshot()
    found = agent.survey(node, root, ["srt/plain.py", "srt/none.py"], payload="srt/payload")
    assert (found.status, found.version, found.payload) == ("found", "0.5.20", False)
    assert [f.sha for f in found.files] == [sha(b"x = 1\n"), None]
    assert found.processes is not None
    assert agent.status(node, root).status == "none"
    done = agent.apply(
        node, root, LABEL, CHANGES, python=sys.executable, imports=["sglang.srt.plain"], seconds=30
    )
    assert done.status == "applied", done
    assert done.done is not None
    assert done.done.replaced == ("srt/plain.py",)
    assert done.python is not None
    assert done.python.imported == ("sglang.srt.plain",)
    assert (package.root / "srt/plain.py").read_bytes() == NEW["srt/plain.py"]
    state = agent.status(node, root)
    assert (state.status, state.set) == ("hardened", LABEL)
    assert agent.apply(node, root, LABEL, CHANGES).status == "unchanged"
    verified = agent.verify(node, root)
    assert (verified.status, verified.differs, verified.bytecode) == ("verified", (), ())
    wanted = [sha(b"x = 1\n"), sha(b"x = 2\n"), "0" * 64]
    assert agent.contents(node, root, wanted, files=["srt/plain.py"]) == {
        sha(b"x = 1\n"): b"x = 1\n",
        sha(b"x = 2\n"): b"x = 2\n",
    }
    back = agent.rollback(node, root)
    assert (back.status, back.state and back.state.status) == ("rolled-back", "none")
    assert package.snapshot() == before
    assert agent.rollback(node, root).status == "unchanged"


def test_refusals_come_typed(package: Package) -> None:
    node, root = LocalTransport(), str(package.root)
    changes = [Change("srt/plain.py", sha(b"other"), b"x = 2\n")]
    answer = agent.apply(node, root, LABEL, changes)
    assert answer.status == "refused"
    assert answer.why is not None
    assert (answer.why.path, answer.why.found) == ("srt/plain.py", sha(b"x = 1\n"))
    none = agent.survey(node, root + "-none", [])
    assert none.status == "refused"
    assert none.why is not None
    assert none.why.what == "the root does not exist"
    assert none.state is None
    for call in (lambda: agent.status(node, "/none"), lambda: agent.contents(node, "/none", ["0" * 64])):
        with pytest.raises(TransportError, match="does not exist"):
            call()


def test_an_interrupted_run_over_the_wire(package: Package) -> None:
    node, root = LocalTransport(), str(package.root)
    before = package.snapshot()
    assert killed_at(70, package.apply)
    assert agent.status(node, root).interrupted
    back = agent.rollback(node, root)
    assert (back.status, back.recovered) == ("rolled-back", True)
    assert package.snapshot() == before


def test_a_large_request(package: Package) -> None:
    noise = b"".join(b"# %s\n" % os.urandom(30).hex().encode() for _ in range(30_000))
    done = agent.apply(LocalTransport(), str(package.root), LABEL, [Change("srt/big.py", None, noise)])
    assert done.status == "applied", done
    assert agent.contents(LocalTransport(), str(package.root), [sha(noise)]) == {sha(noise): noise}


def test_contents_in_more_than_one_answer(package: Package) -> None:
    data = [b"".join(b"# %s\n" % os.urandom(30).hex().encode() for _ in range(60_000)) for _ in range(4)]
    for number, one in enumerate(data):
        package.write(f"srt/big{number}.py", one)
    found = agent.contents(LocalTransport(), str(package.root), [sha(one) for one in data])
    assert found == {sha(one): one for one in data}


@pytest.mark.parametrize(
    "answer",
    [
        *(None, [], "x", {}, {"schema": "pdguard.node/1"}, {"schema": agent.SCHEMA, "do": "apply"}),
        {"schema": agent.SCHEMA, "do": "survey", "status": "fine"},
        {"schema": agent.SCHEMA, "do": "survey", "status": "found", "free_bytes": "many"},
        {"schema": agent.SCHEMA, "do": "survey", "status": "found", "files": [{"path": 1}]},
        {"schema": agent.SCHEMA, "do": "survey", "status": "found", "state": {"status": "odd"}},
        {"schema": agent.SCHEMA, "do": "survey", "status": "refused", "why": {"path": "x"}},
    ],
)
def test_a_strange_answer(answer: Json) -> None:
    with pytest.raises(TransportError, match="makes no sense"):
        agent.survey(Fake(answer), "/x", [])


@pytest.mark.parametrize("text", ["!!", "eJw=", "eJwrBgAAdAB0"])
def test_contents_that_are_not_what_was_asked(text: str) -> None:
    answer: Json = {
        "schema": agent.SCHEMA,
        "do": "contents",
        "status": "found",
        "contents": {"0" * 64: text},
        "left": [],
        "cut": False,
    }
    with pytest.raises(TransportError, match="makes no sense"):
        agent.contents(Fake(answer), "/x", ["0" * 64])


def test_what_is_sent() -> None:
    fake = Fake({"schema": agent.SCHEMA, "do": "apply", "status": "unchanged"})
    agent.apply(fake, "/x", LABEL, CHANGES, python="/p", imports=["sglang"], seconds=5)
    (request,) = fake.requests
    assert request["set"] == {"id": "core-1", "base": "0.5.20", "tool": "0.1.0", "fixes": ["38935", "36988"]}
    assert (request["python"], request["imports"], request["seconds"]) == ("/p", ["sglang"], 5)


def test_engines_are_looked_for() -> None:
    (found,) = agent.find(LocalTransport(), [{"name": "p0", "port": 1, "host": ""}])
    assert (found.name, found.root) == ("p0", "")
    assert found.status in ("none", "unreadable")  # the latter where other users' processes are hidden
