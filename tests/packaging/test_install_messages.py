"""Messages and pages name no install that needs logitport on a package index: it is installed from a clone."""

from __future__ import annotations

import re

from logitport.system.installation import how_to_install
from tests.packaging.install_lines import ROOT

_FROM_AN_INDEX = re.compile(r"\binstall [^`\n]*(?<![\w./-])logitport(\[|-core\b)|pip install '?logitport\b")
_FILES = ("*.md", "docs/**/*.md", "core/*.md", "examples/**/*.md", *(f"{folder}/**/*.py" for folder in (
    "client", "server", "builtin_processors", "proto", "core", "examples", "deploy")))  # fmt: skip


def test_no_text_names_an_index() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for pattern in _FILES
        for path in ROOT.glob(pattern)
        for line in path.read_text().splitlines()
        if _FROM_AN_INDEX.search(line)
    ]
    assert not found


def test_the_command_names_a_clone() -> None:
    assert how_to_install("server", "otel") == "from a clone of logitport: pip install '.[server,otel]'"
