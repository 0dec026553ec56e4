"""mkdocs.yml lists every page, and its hooks translate links and headings as the pages use them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()


def test_each_page_is_listed_once() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", CONFIG, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted({*pages, "index.md"})


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed; run `make docs`")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=variables, check=True, timeout=250)
    index = (tmp_path / "index.html").read_text()
    assert 'href="processors.html"' in index
    assert 'href="source/CONTRIBUTING.md.txt"' in index
    assert (tmp_path / "source" / "CONTRIBUTING.md.txt").read_text() == (ROOT / "CONTRIBUTING.md").read_text()
    assert "](processors.html): " in (tmp_path / "llms.txt").read_text()
    assert 'id="logitport.Client"' in (tmp_path / "api.html").read_text()
