"""Links, headings and paths that the pages name exist."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, read

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "deploy" / "README.md",
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = "client|server|proto|core|builtin_processors|tests|examples|benchmarks|deploy|docs"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*[\w/])")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@every_page
def test_named_paths_exist(page: Path) -> None:
    for path in PATH.findall(page.read_text()):
        assert (ROOT / path).exists(), path


@every_page
def test_every_command_is_a_target_of_the_makefile(page: Path) -> None:
    for target in re.findall(r"(?:^|`|\()make ([a-z][a-z-]+)", page.read_text(), re.MULTILINE):
        assert f"\n{target}:" in read("Makefile"), target
