"""What is printed from the program says what the program does now, and the README's files exist."""

from __future__ import annotations

import re

import pytest

from tests.docs_pages import PAGES, ROOT

LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("name", ["README.md", "docs/cluster-file.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    links = LINK.findall(text)
    assert links
    for link in links:
        assert ((ROOT / name).parent / link).exists(), link
