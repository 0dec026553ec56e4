"""The pages of the documentation, and their parts."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    """The text of a page, by its path from the root."""
    return (ROOT / name).read_text()


def section(page: str, title: str) -> str:
    """A section of the second level, with its heading."""
    return page[page.index(f"## {title}\n") :].partition("\n## ")[0]


def blocks(text: str, language: str = "python") -> list[str]:
    """The blocks of code of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def rows(text: str, header: str = "") -> list[list[str]]:
    """The first table from a header on, cell by cell, without its two lines of headings."""
    lines = text[text.index(header) :].splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("|")) + 2
    end = next((at for at, line in enumerate(lines) if at > begin and not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in re.split(r" \|(?= )", line[1:-1] + " ")] for line in lines[begin:end]]


def codes(text: str, header: str = "") -> list[list[str]]:
    """The same, without marks of code around cells."""
    return [[cell.strip("`") for cell in row] for row in rows(text, header)]
