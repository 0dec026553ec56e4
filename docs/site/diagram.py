"""Draws docs/overview.svg from the diagram of docs/architecture.md: `python docs/site/diagram.py MERMAID.MIN.JS`.

The script is `dist/mermaid.min.js` of the npm package mermaid 11. It needs Playwright and Chromium.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
_PAGE = """<pre>{source}</pre><script>{script}</script><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, deterministicIds: true}})
done = mermaid.run({{querySelector: "pre"}})
</script>"""


def source() -> str:
    """The text of the diagram."""
    (found,) = re.findall(r"```mermaid\n(.*?)```", (DOCS / "architecture.md").read_text(), re.DOTALL)
    return str(found)


def draw(script: Path) -> str:
    """The picture, with a white ground, so that it can be read on a dark page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content(_PAGE.format(source=html.escape(source()), script=script.read_text()))
        page.evaluate("done")
        drawn: str = page.evaluate("new XMLSerializer().serializeToString(document.querySelector('svg'))")
        browser.close()
    return drawn.replace('style="', 'style="background: white; ', 1)


if __name__ == "__main__":
    (DOCS / "overview.svg").write_text(draw(Path(sys.argv[1])) + "\n")
