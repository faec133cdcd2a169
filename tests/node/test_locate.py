from __future__ import annotations

from pathlib import Path

from tests.node.tree import ANY, HOLD, LAUNCH, Tree, engine_tree, title

POD = "net:[4026532001]"
POD2 = "net:[4026532002]"


def test_engine_behind_a_port(tmp_path: Path) -> None:
    found = engine_tree(tmp_path).engine()
    assert found["status"] == "found"
    process = found["process"]
    assert process["pid"] == 20
    assert process["chain"] == [20, 10, 1]
    assert process["started"] == 1700000000 + 20
    assert process["titles"] == ["sglang::detokenizer", "sglang::scheduler_TP0"]
    assert process["env"] == {"state": "read", "why": "", "values": {HOLD: "on"}}
    assert process["argv"]["program"] == "sglang.launch_server"
    assert process["argv"]["args"] == ["--?", "?", "--port", "30000"]


def test_nothing_listens(tmp_path: Path) -> None:
    assert engine_tree(tmp_path).engine(31000)["status"] == "none"


def test_retitled_listener_leads_to_its_first_ancestor_with_an_environment(tmp_path: Path) -> None:
    tree = engine_tree(tmp_path)
    tree.add(23, 20, title("sglang::tokenizer_worker:23"), b"\0" * 300, listens=[(ANY, 31000)])
    found = tree.engine(31000)
    assert found["process"]["pid"] == 20
    assert found["process"]["env"]["state"] == "read"


def test_environment_of_a_stranger_is_not_taken(tmp_path: Path) -> None:
    """A retitled listener whose launcher is gone hangs below init, whose environment is not the engine's."""
    tree = Tree(tmp_path)
    tree.add(1, 0, ["/sbin/init"], {HOLD: "1"})
    tree.add(20, 1, title("sglang::tokenizer_worker:20"), b"\0" * 300, listens=[("::", 30000)])
    found = tree.engine()
    assert found["process"]["pid"] == 20
    assert found["process"]["env"] == {"state": "all-nul", "why": "", "values": {}}
    assert found["process"]["argv"] == {"state": "retitled"}


def test_empty_and_unreadable_environment(tmp_path: Path) -> None:
    assert engine_tree(tmp_path / "a", b"").engine()["process"]["env"]["state"] == "empty"
    tree = engine_tree(tmp_path / "b")
    (tmp_path / "b" / "20" / "environ").unlink()
    env = tree.engine()["process"]["env"]
    assert (env["state"], env["why"]) == ("unreadable", "gone")


def test_other_namespaces_are_seen(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(1, 0, ["init"], {})
    tree.add(30, 1, LAUNCH, {}, net=POD, listens=[("::", 30000)])
    assert tree.engine()["process"]["pid"] == 30


def test_two_namespaces_are_told_apart_by_address(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(1, 0, ["init"], {})
    tree.add(30, 1, LAUNCH, {}, net=POD, listens=[(ANY, 30000)])
    tree.add(40, 1, LAUNCH, {}, net=POD2, listens=[(ANY, 30000)])
    tree.addresses(POD, "10.0.0.3", "127.0.0.1")
    tree.addresses(POD2, "10.0.0.4", "127.0.0.1")
    assert tree.engine(host="10.0.0.4")["process"]["pid"] == 40
    assert tree.engine(host="10.0.0.3")["process"]["pid"] == 30
    assert tree.engine()["status"] == "ambiguous"
    assert tree.engine(host="10.0.0.9")["status"] == "ambiguous"
    assert tree.engine(host="not-an-address")["status"] == "ambiguous"


def test_loopback_means_this_namespace(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(30, 1, LAUNCH, {}, net=POD, listens=[(ANY, 30000)])
    tree.add(40, 1, LAUNCH, {}, listens=[("127.0.0.1", 30000)])
    assert tree.engine(host="localhost")["process"]["pid"] == 40


def test_a_proxy_on_the_port_is_passed_over(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(5, 1, ["/usr/bin/docker-proxy", "-host-port", "30000"], {}, listens=[(ANY, 30000)])
    assert tree.engine()["status"] == "other"
    tree.add(30, 1, LAUNCH, {}, net=POD, listens=[(ANY, 30000)])
    assert tree.engine()["process"]["pid"] == 30


def test_listener_of_another_user(tmp_path: Path) -> None:
    tree = engine_tree(tmp_path)
    for entry in (tmp_path / "20" / "fd").iterdir():
        entry.unlink()
    assert tree.engine()["status"] == "unreadable"


def test_hidden_namespaces_are_not_taken_for_nothing_there(tmp_path: Path) -> None:
    tree = engine_tree(tmp_path)
    (tmp_path / "10" / "ns" / "net").unlink()
    found = tree.engine(31000)
    assert found["status"] == "unreadable"
    assert "1 processes cannot be looked into" in found["why"]


def test_shared_socket_is_one_engine(tmp_path: Path) -> None:
    tree = engine_tree(tmp_path)
    inode = int(next((tmp_path / "20" / "fd").iterdir()).name)
    tree.share(21, inode)
    assert tree.engine()["process"]["pid"] == 20


def test_custom_launcher_is_known_by_its_workers(tmp_path: Path) -> None:
    tree = engine_tree(tmp_path, argv=["python3", "serve.py", "--secret", "sk-1"])
    found = tree.engine()
    assert found["process"]["pid"] == 20
    assert found["process"]["argv"] == {"state": "not understood"}
    assert "sk-1" not in repr(found)


def test_followers(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    extra = ["--dist-init-addr", "10.0.0.1:5000", "--node-rank"]
    tree.add(1, 0, ["sh", "-c", " ".join([*LAUNCH, *extra, "1"])], {})
    tree.add(50, 1, [*LAUNCH, *extra, "1"], {HOLD: "1"})
    tree.add(51, 50, title("sglang::scheduler_TP8"), b"\0" * 10)
    tree.add(60, 1, [*LAUNCH, *extra, "0"], {})
    ask = {"name": "e", "follower": True, "dist_init_addr": "10.0.0.1:5000"}
    found = tree.ask([ask])["engines"][0]
    assert found["process"]["pid"] == 50
    assert tree.ask([{**ask, "dist_init_addr": "10.0.0.2:5000"}])["engines"][0]["status"] == "none"
    tree.add(70, 1, [*LAUNCH, *extra, "2"], {})
    assert tree.ask([ask])["engines"][0]["status"] == "ambiguous"


def test_router(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "proc")
    root = tmp_path / "root"
    home = root / "opt/site-packages"
    (home / "smg").mkdir(parents=True)
    (home / "smg" / "smg_rs.abi3.so").write_bytes(b"\x7fELF" + b"x" * 100 + b"2026-10-15 19:06:22 UTCrelease")
    (home / "smg-1.13.0.dist-info").mkdir()
    (home / "smg-1.13.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: smg\nVersion: 1.13.0\n\nx"
    )
    (home / "smg" / "version.py").write_text('__version__ = "1.1.0"')
    tree.add(9, 1, ["bash", "-c", "smg launch --api-key sk-1"], {})
    tree.add(80, 9, title("smg::router"), b"\0" * 9, listens=[(ANY, 8000)], root=root)
    (tmp_path / "proc/80/maps").write_text(
        "7f00-7f01 r-xp 00000000 08:01 99   /opt/site-packages/smg/smg_rs.abi3.so\n"
    )
    found = tree.ask(routers=[{"name": "r", "port": 8000}])["routers"][0]
    pid = found["process"].pop("pid")
    assert pid == 80
    assert "sk-1" not in repr(found)
    assert found["process"] | {"started": 0} == {
        "started": 0,
        "kind": "smg",
        "version": "1.13.0",
        "built": "2026-10-15",
    }
