"""Headless Chromium of this machine, driven by Playwright."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Chromium's own sandbox does not start as root. The tests open only the page under test.
ARGUMENTS = ["--no-sandbox", "--force-color-profile=srgb", "--font-render-hinting=none"]


def executable() -> str | None:
    """The path of Chromium; None where it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """Start a browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)  # a machine may be busy
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS, timeout=120_000)
        try:
            yield browser
        finally:
            browser.close()
