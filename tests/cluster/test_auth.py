"""Keys: where they come from, and that no error holds one."""

# ruff: noqa: E501 - an error is one line, and is shown as one

from __future__ import annotations

from pathlib import Path

import pytest

from pdguard.cluster import Auth, AuthProblem, resolve_headers, resolve_key, resolve_path
from pdguard.errors import InputError

SECRET = "sk-planted-0123456789abcdef"


def problem(auth: Auth, base: Path, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(AuthProblem) as caught:
        resolve_key(auth, base, environ or {})
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2
    assert caught.value.__context__ is None
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_no_auth(tmp_path: Path) -> None:
    assert resolve_key(None, tmp_path, {}) is None


def test_from_a_variable(tmp_path: Path) -> None:
    key = resolve_key(Auth(api_key_env="KEY"), tmp_path, {"KEY": f" {SECRET}\n"})
    assert key is not None
    assert key.get_secret_value() == SECRET
    assert SECRET not in repr(key)


def test_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    for name in ("key", "./key", str(tmp_path / "key")):
        key = resolve_key(Auth(api_key_file=name), tmp_path, {})
        assert key is not None
        assert key.get_secret_value() == SECRET


def test_problems_name_the_variable(tmp_path: Path) -> None:
    auth = Auth(api_key_env="KEY")
    assert problem(auth, tmp_path) == (
        "the environment variable KEY is not set, expected a key in it. Set KEY, or change auth in the cluster file."
    )
    assert problem(auth, tmp_path, {"KEY": " \n"}) == "the environment variable KEY is empty, expected a key"
    for bad in (f"{SECRET}\n{SECRET}", f"{SECRET}\0", f"{SECRET}é"):
        assert problem(auth, tmp_path, {"KEY": bad}) == (
            "the environment variable KEY holds what an HTTP header cannot carry, expected one line of printable ASCII"
        )


def test_problems_name_the_file(tmp_path: Path) -> None:
    auth = Auth(api_key_file="./api-key")
    missing = "the key file ./api-key cannot be read, expected a file that holds the key, found "
    assert problem(auth, tmp_path) == missing + "no such file or directory. Check its path and mode."
    path = tmp_path / "api-key"
    path.mkdir()
    assert problem(auth, tmp_path) == missing + "is a directory. Check its path and mode."
    path.rmdir()
    path.write_text("\n")
    assert problem(auth, tmp_path) == "the key file ./api-key is empty, expected a key"
    path.write_bytes(b"\xff\xfe")
    assert "holds what an HTTP header cannot carry" in problem(auth, tmp_path)
    path.write_text("x" * (64 * 1024 + 1))
    assert "is too large for a key" in problem(auth, tmp_path)


def test_a_key_in_place_of_a_path_is_not_repeated(tmp_path: Path) -> None:
    assert problem(Auth(api_key_file=SECRET), tmp_path).startswith(
        "the file that api_key_file names cannot be read"
    )


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve_path("~/k", tmp_path) == Path("/home/me/k")
    assert resolve_path("/k", tmp_path) == Path("/k")
    assert resolve_path("k", tmp_path) == tmp_path / "k"
    assert resolve_path("~no-such-user-here/k", tmp_path) == tmp_path / "~no-such-user-here/k"


def test_headers() -> None:
    headers = resolve_headers({"X-Scope-OrgID": "TENANT"}, {"TENANT": "t1"})
    assert headers["X-Scope-OrgID"].get_secret_value() == "t1"
    with pytest.raises(AuthProblem, match="the environment variable TENANT is not set"):
        resolve_headers({"X-Scope-OrgID": "TENANT"}, {})
