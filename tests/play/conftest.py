"""A server of the page in a thread, and a client of it."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from logitport_play.web.serving import PlayServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = '''
"""Processors of a test."""

from typing import Annotated

from logitport import EditProcessor, Float


class Boost(EditProcessor):
    """Raises the logit of one word."""

    params = {"bias": Float(default=1.5, ge=-10, le=10)}

    def edit(self, request, edits):
        edits.bias([9], request.params["bias"])


class Fails(EditProcessor):
    def edit(self, request, edits):
        if len(request.history.output_token_ids) == 2:
            raise RuntimeError("at the third step")


def flatter(input_ids, scores, strength: Annotated[float, "how much"] = 0.5):
    """Divides the scores."""
    return scores * strength


def helper(text):
    return text
'''


class Client:
    """Calls a server of the page, with nothing added."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.hostname or "", parts.port or 0, parts.path

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Returns status, body and headers. `path` is the whole path."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True)
            for key, value in {"Host": f"{self.host}:{self.port}", **(headers or {})}.items():
                connection.putheader(key, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.read(), {key.lower(): value for key, value in response.getheaders()}
        finally:
            connection.close()

    def get(self, name: str) -> Any:
        status, body, _ = self.call("GET", f"{self.path}api/{name}")
        assert status == 200, body
        return json.loads(body)

    def post(self, name: str, value: Any) -> tuple[int, Any]:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        headers = {"Content-Type": "application/json"}
        status, answer, _ = self.call("POST", f"{self.path}api/{name}", body, headers)
        return status, json.loads(answer)

    def run(self, **spec: Any) -> Any:
        """Runs to the end, as the page does: a call returns when its time is used up. The parts are joined."""
        whole: dict[str, Any] = {}
        since = spec.pop("since", 0)
        while True:
            status, answer = self.post("run", {**SPEC, **spec, "since": since})
            assert status == 200, answer
            if whole:
                answer["panes"] = whole["panes"] + answer["panes"]
                answer["new_steps"] += whole["new_steps"]
                answer["since"] = whole["since"]
            whole, since = answer, answer["steps"]
            if answer["ended"] or since >= {**SPEC, **spec}["steps"]:
                return whole


SPEC = {"lane": "a", "model": "story", "prompt": "Once upon a time", "seed": 7, "steps": 4, "chain": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("play")
    (folder / "my.py").write_text(FILE)
    return folder


@contextmanager
def running(server: PlayServer) -> Iterator[PlayServer]:
    """Run a server of the page in a thread."""
    thread = Thread(target=server.run, args=(lambda: None,))
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[PlayServer]:
    with running(PlayServer([folder / "my.py"], seed=7)) as server:
        yield server


@pytest.fixture
def client(server: PlayServer) -> Client:
    return Client(server.url)
