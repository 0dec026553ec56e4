"""Serves the page on this machine."""

from __future__ import annotations

import socket
from threading import Thread
from typing import TYPE_CHECKING

import uvicorn

from logitport.errors import ServerUnavailable
from logitport_play.models import open_models
from logitport_play.replays import Replays
from logitport_play.runs import Runs
from logitport_play.watched_files import Files
from logitport_play.web.application import PlayApplication
from logitport_play.web.page_guard import new_token
from logitport_play.web.replay_application import ReplayPlay
from logitport_recording.reading.reader import MAX_MEMORY_BYTES, read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_HOST = "127.0.0.1"


class PlayServer:
    """A server of the page, which listens. The arguments are the options of `logitport play`.

    With a recording, the page shows its requests with new versions of processors, and no model.

    Attributes:
        url: address of the page, with its token.

    Raises:
        InvalidArgument, PayloadError: a file, a folder, the recording or the tokenizer cannot be used.
        NotInstalled: a model needs a package that is not installed.
        ServerUnavailable: the port is taken.
    """

    def __init__(
        self,
        files: Sequence[Path] = (),
        folders: Sequence[Path] = (),
        prompt: str | None = None,
        seed: int = 0,
        port: int = 0,
        *,
        recording: Path | None = None,
        tokenizer: Path | None = None,
        run_payloads: bool = False,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        watched = Files(files)
        self._runs: Runs | Replays
        page: PlayApplication | ReplayPlay
        if recording is None:
            models = open_models(folders)
            self._runs = Runs(models, watched)
            page = PlayApplication(models, watched, self._runs, prompt, seed)
        else:
            content = read_recording(recording, max_memory_bytes=max_memory_bytes)
            self._runs = Replays(content, watched, tokenizer, run_payloads=run_payloads)
            page = ReplayPlay(recording.name, watched, self._runs)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((_HOST, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ServerUnavailable(f"cannot listen on {_HOST}:{port}: {error}; choose another --port") from error
        port, token = self._socket.getsockname()[1], new_token()
        self.url = f"http://{_HOST}:{port}/{token}/"
        config = uvicorn.Config(
            page.guarded(token, port),
            log_level="warning",
            access_log=False,  # it would have the token
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    def run(self, started: Callable[[], object]) -> None:
        """Serve until `stop`, SIGINT or SIGTERM. Calls `started` when the socket accepts connections."""
        Thread(target=self._runs.warm_up, daemon=True).start()
        started()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._runs.close()
            self._socket.close()

    def stop(self) -> None:
        """End `run`."""
        self._server.should_exit = True
