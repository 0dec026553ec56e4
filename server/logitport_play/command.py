"""`logitport play`."""

from __future__ import annotations

import html
import sys
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import BaseModel, Field

from logitport.errors import InvalidArgument, NotInstalled
from logitport.system.installation import how_to_install
from logitport_recording.reading.reader import MAX_MEMORY_BYTES
from logitport_server.config.option import Argument, Flag, Metavar
from logitport_server.config.units import Size
from logitport_server.config.values import Folder, Port
from logitport_server.lifecycle.start_errors import UsageError
from logitport_session import stubs

_REDIRECTION = """<!doctype html>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<a href="{url}">logitport play</a>
"""


class Play(BaseModel):
    """Open a page that shows, step by step, what a chain of processors does to the probabilities.

    The page runs the processors of the files in this process, and loads a file again when it is saved. It is served on
    this machine alone, at an address with a random token.
    """

    files: Argument[list[Path]] = Field([], description="Python files with processors")
    model: list[Folder] = Field(
        [],
        description="folder of a causal model of transformers, with its tokenizer; without it, a small "
        "model of a story",
    )
    recording: Annotated[Path | None, Metavar("FILE")] = Field(
        None,
        description="show the requests of a recording, and where processors of the files would have differed from the "
        "recorded ones; without a model",
    )
    tokenizer: Annotated[Path | None, Metavar("PATH")] = Field(
        None, description="tokenizer.json of the recorded model, or its folder, for --recording"
    )
    run_payloads: Annotated[bool, Flag("--run-payloads")] = Field(
        False,
        description="run the code of shipped processors that the recording holds, in this process, without a sandbox: "
        "only for recordings that you trust",
    )
    max_memory: Size = Field(MAX_MEMORY_BYTES, ge=1 << 20, description="memory for the events of --recording")
    prompt: str | None = Field(None, description="the prompt to begin with")
    seed: Annotated[int, Metavar("NUMBER")] = Field(7, ge=0, lt=1 << 53, description="the seed to begin with")
    port: Port = Field(0, ge=0, le=65535, description="the port of 127.0.0.1 to listen on; 0 chooses a free one")
    browser: bool = Field(True, description="open the page in the browser")

    def run(self) -> None:
        try:
            from logitport_play.web.serving import PlayServer
        except ModuleNotFoundError as error:
            raise NotInstalled(
                f"{error.name} is not installed; install it {how_to_install('server', 'play')}"
            ) from error
        self._check()
        stubs.offer()
        try:
            server = PlayServer(
                self.files,
                self.model,
                self.prompt,
                self.seed,
                self.port,
                recording=self.recording,
                tokenizer=self.tokenizer,
                run_payloads=self.run_payloads,
                max_memory_bytes=self.max_memory,
            )
        except InvalidArgument as error:
            raise UsageError(str(error)) from error
        with TemporaryDirectory(prefix="logitport-play-") as folder:
            server.run(lambda: self._announce(server.url, Path(folder)))

    def _check(self) -> None:
        if self.recording is None and self.tokenizer is not None:
            raise UsageError("--tokenizer is that of a recording: give --recording FILE, too; models have their own")
        if self.recording is None and self.run_payloads:
            raise UsageError("--run-payloads runs the code of a recording: give --recording FILE, too")
        if self.recording is not None and (self.model or self.prompt is not None):
            raise UsageError("--recording shows recorded requests: leave out --model and --prompt")

    def _announce(self, url: str, folder: Path) -> None:
        """Print the address, and open it.

        The browser gets a file of this user that leads to the address: all users can read the arguments of its process,
        and the address has the token.
        """
        print(f"logitport play: {url}", flush=True)  # noqa: T201
        if not self.browser:
            return
        page = folder / "open.html"
        page.touch(0o600)
        page.write_text(_REDIRECTION.format(url=html.escape(url)))
        if not webbrowser.open(page.as_uri()):
            print("no browser could be opened; open the address in one", file=sys.stderr)  # noqa: T201
