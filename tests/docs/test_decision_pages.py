"""docs/decisions/ has one form, and is listed where contributors start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, rows, section

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
PAGES = sorted(set(FOLDER.glob("*.md")) - {INDEX})
SECTIONS = ["Question", "Decision", "Alternatives", "Consequences", "Where it is in the code"]
# Requests, processes and benchmarks are not people.
PERSONAL = re.compile(r"\b(who|whom|whose|nobody|somebody|told|tells?|says|said|wants?|asks?|asked|costs?)\b", re.I)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


@every_page
def test_each_page_has_the_form(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert 25 <= text.count("\n") <= 60
    alternatives = rows(section(text, "Alternatives"), "| alternative | why it lost |")
    assert len(alternatives) >= 3
    assert all(len(row) == 3 and all(row) for row in alternatives)


@pytest.mark.parametrize(("listing", "folder"), [(INDEX, ""), (ROOT / "docs" / "architecture.md", "decisions/")])
def test_each_page_is_listed_with_its_title(listing: Path, folder: str) -> None:
    listed = dict(re.findall(rf"\[([^\]]+)\]\({folder}([\w-]+\.md)\)", listing.read_text()))
    assert listed.items() >= {title(page): page.name for page in PAGES}.items()


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_nothing_is_described_as_a_person(page: Path) -> None:
    assert not PERSONAL.findall(re.sub(r"`[^`]*`", "", page.read_text()))
