"""Pages printed from the program itself. `python -m tests.docs_pages` writes them; a test compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer.main

from pdguard._bundle import bundled
from pdguard.cli.app import app
from pdguard.facts.document import facts_page
from pdguard.policy.document import checks_page
from pdguard.policy.loader import load_checks

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- help:begin -->", "<!-- help:end -->"


def help_section() -> str:
    """The help of every command, as README shows it."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    wide: Any = {"terminal_width": 100, "max_content_width": 100, "resilient_parsing": True}
    with group.make_context("pdguard", [], **wide) as root:
        texts = {"pdguard": group.get_help(root)}
        for name, command in group.commands.items():
            with command.make_context(name, [], parent=root, **wide) as context:
                texts[f"pdguard {name}"] = command.get_help(context)
    return "\n".join(f"```console\n$ {name} --help\n{text.rstrip()}\n```\n" for name, text in texts.items())


def readme() -> str:
    """README.md with its help section as it ought to be."""
    text = (ROOT / "README.md").read_text("utf-8")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{help_section()}{END}{rest.split(END, 1)[1]}"


PAGES: dict[str, Callable[[], str]] = {
    "README.md": readme,
    "docs/checks.md": lambda: checks_page(load_checks(bundled("checks"))),
    "docs/facts.md": facts_page,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
