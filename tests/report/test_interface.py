from __future__ import annotations

import io
import subprocess
import sys

import pytest

from pdguard.errors import InputError
from pdguard.report import interface
from pdguard.report.interface import Renderer, RenderOptions, create, formats, options_for, register
from tests.report.samples import small


class Stream(io.StringIO):
    def __init__(self, tty: bool, encoding: str | None) -> None:
        super().__init__()
        self.tty = tty
        self.code = encoding

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self.code

    def isatty(self) -> bool:
        return self.tty


def test_every_format_renders_under_its_name() -> None:
    assert set(formats()) >= {"json", "table"}
    for name in formats():
        renderer = create(name)
        assert isinstance(renderer, Renderer)
        assert renderer.name == name
        assert renderer.render(small()).endswith("\n")


@pytest.mark.parametrize(("wrong", "near"), [("jsn", "json"), ("JSON", "json"), ("tabel", "table")])
def test_an_unknown_name_gets_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        create(wrong)
    assert caught.value.exit_code == 2
    assert caught.value.todo == f"Did you mean {near}?"
    assert near in caught.value.expected
    assert wrong in caught.value.found


def test_nothing_near_no_guess() -> None:
    with pytest.raises(InputError) as caught:
        create("zzzzzz")
    assert caught.value.todo == ""


def test_a_new_format_registers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_REGISTRY", dict(interface._REGISTRY))
    register("sarif", lambda options: create("json", options))
    assert "sarif" in formats()
    with pytest.raises(ValueError, match="sarif"):
        register("sarif", lambda options: create("json", options))


@pytest.mark.parametrize(
    ("tty", "env", "color"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_only_on_a_terminal_that_wants_it(tty: bool, env: dict[str, str], color: bool) -> None:
    assert options_for(Stream(tty, "utf-8"), env).color is color


@pytest.mark.parametrize(
    ("encoding", "unicode"),
    [("utf-8", True), ("ascii", False), ("latin-1", False), (None, False), ("no-such", False)],
)
def test_unicode_only_where_it_encodes(encoding: str | None, unicode: bool) -> None:
    assert options_for(Stream(False, encoding), {}).unicode is unicode


def test_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert options_for(Stream(False, "utf-8"), {}) == RenderOptions(100, False, True)
    assert options_for(Stream(True, "utf-8"), {}).width == 72
    assert options_for(Stream(True, "utf-8"), {}, width=140).width == 140
    assert options_for(Stream(True, "utf-8"), {}, width=3).width == 50


def test_rich_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys; from pdguard.report import interface, summary;"
        "interface.create('json'); sys.exit('rich' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
