"""The pictures of docs/play.md: python -m tests.play.screenshots."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_play.web.serving import PlayServer
from logitport_testing import StoryModel
from tests.play.browser import launched
from tests.play.conftest import running
from tests.play.recordings import NEW, write_recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("play-examples.png", "play.png", "play-compare.png", "play-error.png", "play-recording.png")
MAX_BYTES = 200_000
FAILING = '''

class Fragile(EditProcessor):
    """Divides by zero at one step."""

    def edit(self, request, edits):
        words = request.history.length - request.history.prompt_length
        edits.bias([9], 1 / (words - 4))
'''


def first_processor() -> str:
    """The file of docs/play.md."""
    return re.findall(r"```python\n(.*?)```", (DOCS / "play.md").read_text(), re.DOTALL)[0]


def write(folder: Path) -> None:
    """Write all pictures to a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "my.py"
        file.write_text(first_processor() + FAILING)
        with running(PlayServer(seed=7)) as server, launched() as browser:
            _examples(browser, server.url).screenshot(path=folder / NAMES[0])
        with running(PlayServer([file], seed=7)) as server, launched() as browser:
            for name, page in zip(NAMES[1:], (_one_chain, _two_chains, _an_error), strict=False):
                page(browser, server.url).screenshot(path=folder / name)
        _write_recording(folder / NAMES[4], Path(temporary))


def _write_recording(path: Path, temporary: Path) -> None:
    """Write the picture of a recording."""
    file, recording = temporary / "fixed.py", temporary / "engine.lprec"
    file.write_text(NEW.replace("* 3", "* 0.6"))
    write_recording(recording)
    server = PlayServer([file], recording=recording, tokenizer=StoryModel.tokenizer_path)
    with running(server), launched() as browser:
        page = _opened(browser, server.url, 1280, 690, "light")
        page.get_by_label("request").select_option("1")
        page.locator(".lp-tile.lp-unknown").first.wait_for()
        _show(page.locator(".lane"), 2)
        page.screenshot(path=path)


def _examples(browser: Browser, url: str) -> Page:
    page = _opened(browser, url, 1400, 640, "light")
    page.locator(".example").nth(2).wait_for()
    page.locator(".lane .lp-tile").nth(23).wait_for()
    page.wait_for_timeout(300)
    return page


def _one_chain(browser: Browser, url: str) -> Page:
    page = _opened(browser, url, 1280, 610, "light")
    _add(page, "no_repeat_ngram")
    _add(page, "temperature")
    _run(page, 24)
    _show(page.locator(".lane"))
    return page


def _two_chains(browser: Browser, url: str) -> Page:
    page = _opened(browser, url, 1280, 860, "dark")
    _add(page, "temperature")
    _run(page, 24)
    page.get_by_label("Compare").check()
    page.locator(".lane").nth(1).get_by_label("bias of 1").fill("-8")
    page.locator(".lp-differs").first.wait_for()
    for lane in page.locator(".lane").all():
        _show(lane)
    return page


def _an_error(browser: Browser, url: str) -> Page:
    page = _opened(browser, url, 1280, 750, "light")
    _add(page, "my.py:Fragile")
    _run(page, 12)
    _show(page.locator(".lane"))
    return page


def _show(lane: Locator, step: int = 4) -> None:
    lane.locator(".lp-tile").nth(step).click()
    lane.page.locator("h1").click()  # no element has the focus, or the mouse
    lane.page.wait_for_timeout(300)  # of transitions


def _opened(browser: Browser, url: str, width: int, height: int, scheme: str) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(60_000)
    page.goto(url)
    page.locator(".lane .card").first.wait_for()
    return page


def _add(page: Page, name: str) -> None:
    count = page.locator(".card").count()
    page.get_by_label("Add a processor").select_option(name)
    page.locator(".card").nth(count).wait_for()


def _run(page: Page, steps: int) -> None:
    page.get_by_role("button", name="Reset").click()
    page.locator(".lp-tile").first.wait_for(state="detached")
    page.get_by_label("steps to run").fill(str(steps))
    page.get_by_role("button", name="Run").click()
    page.locator(".lp-tile").nth(steps - 1).wait_for()
    page.wait_for_timeout(500)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
