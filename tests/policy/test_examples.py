"""Checks of the operator's own: their examples are run when they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdguard.errors import CheckFileError
from pdguard.policy.examples import require_examples
from pdguard.policy.loader import load_checks

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
EXAMPLE = README.split("# my/ACM101.yaml\n", 1)[1].split("```", 1)[0]


def load(folder: Path, text: str) -> None:
    (folder / "ACM101.yaml").write_text(text, "utf-8")
    require_examples(load_checks(folder))


def test_the_readme_s_example_loads(tmp_path: Path) -> None:
    load(tmp_path, EXAMPLE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("!= 64\n", '!= "64"\n', "example pass[0] gives fail, expected pass"),
        ("{page_size: 1}", "{page_size: 64}", "example fail[0] gives pass, expected fail"),
        ("{page_size: 1}", "{page_sz: 1}", "no fact engine.page_sz, did you mean page_size"),
        ("fail_if: engine.page_size != 64", "fail_if: engine.page_size", "no truth value"),
        (
            "fail_if: engine.page_size",
            "fail_if: engine.pagesize",
            "no fact engine.pagesize, expected page_size",
        ),
        ("severity: low", "severity: grave", "no such severity, expected low"),
        ("id: ACM101 ", "id: ACM102 ", "bears its id"),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(CheckFileError) as error:
        load(tmp_path, EXAMPLE.replace(old, new))
    assert message in str(error.value)


def test_a_folder_without_checks_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckFileError, match="no check in it"):
        load_checks(tmp_path)
