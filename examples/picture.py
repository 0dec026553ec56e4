"""Shows how to open the page of `logitport play`, and writes a picture of it where Chromium is installed.

`make demo` runs it. The page is served only while its picture is taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

from logitport_play.web.serving import PlayServer

PICTURE = Path("demo.png")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Virtual: Chromium waits for the answers of the page first.
WAIT_MILLISECONDS = 10_000
LIMIT_SECONDS = 120.0


def take(browser: str, path: Path) -> bool:
    """Write a picture of the first screen. Returns whether Chromium has done so."""
    server = PlayServer(seed=7)
    thread = Thread(target=server.run, args=(lambda: None,))
    thread.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            # All users can read the arguments of a process: the address, which has a token, is in a file.
            page = Path(folder) / "open.html"
            page.touch(0o600)
            page.write_text(f'<meta http-equiv="refresh" content="0; url={server.url}">')
            command = [browser, "--headless", "--hide-scrollbars", "--window-size=1400,1080"]
            command += [f"--user-data-dir={folder}/profile", f"--virtual-time-budget={WAIT_MILLISECONDS}"]
            command += ["--no-sandbox"] if os.geteuid() == 0 else []  # it does not start as root
            command += [f"--screenshot={path.resolve()}", page.as_uri()]
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_SECONDS, check=False)
            return done.returncode == 0 and path.is_file()
    except subprocess.TimeoutExpired:
        return False
    finally:
        server.stop()
        thread.join()


def main() -> None:
    """Print the command, and the path of the picture."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is not None and take(browser, PICTURE):
        print(f"A picture of what processors do: {PICTURE.resolve()}")
    print(f"The page itself: {Path(sys.executable).with_name('logitport')} play   (prints its address)")


if __name__ == "__main__":
    main()
