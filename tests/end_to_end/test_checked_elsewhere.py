"""The server's own process neither reads nor verifies what clients register: the process of the caller does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import torch

from logitport import Client, InvalidArgument, PayloadError, Request, payload
from logitport.payload import envelope, python_check
from logitport_programs.program import Program, Value
from logitport_runner.in_thread import ThreadServer
from logitport_session.processor_sources import installed, programs
from logitport_session.resources import parsing
from tests.programs.runtime import build
from tests.toy_processors import AddOne

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VOCAB = 8
CODE = AddOne.to_str()
PROGRAM = payload.seal_program(build.min_p().program.to_bytes(), "MinP")
BAD_PROGRAM = payload.seal_program(Program("x", (Value("logits"), Value("exp", (7,)))).to_bytes(), "X")
BAD_CODE = json.dumps({"callable": "00"})


def refuse(*_: object) -> NoReturn:
    raise AssertionError("the server's own process computes for a caller")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """Starts servers in this process on one store. They can neither read pickles nor verify programs."""
    for module, name in (
        *((envelope, "read"), (python_check, "read"), (programs, "verify"), (programs, "load_program")),
        *((installed, "verify"), (parsing, "parse")),
    ):
        monkeypatch.setattr(module, name, refuse)
    running: list[Any] = []

    def close() -> None:
        while running:
            running.pop().close()

    class Server(ThreadServer):
        def close(self) -> None:
            self.stop()

    def start() -> Client:
        close()
        running.append(Server({"store": str(tmp_path / "store")}))
        running.append(Client(running[0].target))
        return running[-1]

    yield start
    close()


def applied(client: Client, processor: str) -> torch.Tensor:
    return client.apply(torch.zeros(1, VOCAB), [Request([1], processors=[(processor, {"min_p": 0.5})])]).logits


def test_registrations(serve: Callable[[], Client]) -> None:
    client = serve()
    for name, serialized in (("team/code", CODE), ("team/program", PROGRAM)):
        assert client.register(serialized, name=name).names == (name,)
    for wrong, error in ((BAD_PROGRAM, InvalidArgument), (BAD_CODE, PayloadError)):
        with pytest.raises(error):
            client.register(wrong, name="team/bad")
    client = serve()
    assert [ref.names for ref in client.processors() if not ref.builtin] == [("team/code",), ("team/program",)]
    assert applied(client, "team/code").tolist() == [[1.0] * VOCAB]
    assert applied(client, "team/program").tolist() == [[0.0] * VOCAB]
