"""A server that accepts only signed payloads."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, PayloadError, Request, RequestsFailed, payload
from logitport.payload.signing import read_private_key
from tests.conftest import COMMAND
from tests.programs.runtime import build
from tests.toy_processors import AddOne
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trusted key `keys/team` and an untrusted one."""
    path: Path = tmp_path_factory.mktemp("signed")
    (path / "keys").mkdir()
    for key in ("keys/team", "strange"):
        subprocess.run([COMMAND, "payload", "keygen", str(path / key)], check=True, capture_output=True, timeout=200)
    return path


@pytest.fixture(scope="module")
def strict(serving: Callable[..., Any], folder: Path) -> Iterator[RunningServer]:
    flags = ("--enable-custom-logit-processor", "--isolation", "none", "--trusted-keys", str(folder / "keys"))
    with serving(*flags) as running:
        yield running


@pytest.fixture
def client(strict: RunningServer) -> Iterator[Client]:
    with Client(strict.target) as connected:
        yield connected


def apply(client: Client, processor: Any) -> torch.Tensor:
    result: torch.Tensor = client.apply(torch.zeros(1, VOCAB), [Request([1], processors=[(processor, {})])]).logits
    return result


def test_a_signed_payload_is_accepted(client: Client, folder: Path) -> None:
    key = folder / "keys" / "team"
    digest = client.register(AddOne, name="team/plus", signing_key=key).digest
    inline = payload.sign(AddOne.to_str(), read_private_key(key))
    for processor in ("team/plus", digest, inline):
        assert torch.equal(apply(client, processor), torch.ones(1, VOCAB))


def test_an_unsigned_payload_is_refused(client: Client, folder: Path) -> None:
    signed = payload.sign(AddOne.to_str(), read_private_key(folder / "keys" / "team"), name="team/x")
    refused = {
        "is not signed": AddOne.to_str(),
        "does not trust": payload.sign(AddOne.to_str(), read_private_key(folder / "strange"), name="team/x"),
        "does not fit": json.dumps({**json.loads(signed), "python": "3.1"}),
        "expired": payload.sign(AddOne.to_str(), read_private_key(folder / "keys" / "team"), name="team/x", seconds=-5),
    }
    for message, serialized in refused.items():
        with pytest.raises(PayloadError, match=message):
            client.register(serialized, name="team/x")
        with pytest.raises(RequestsFailed, match=message):
            apply(client, serialized)
    with pytest.raises(PayloadError, match="signed for 'team/x', not for 'team/y'"):
        client.register(signed, name="team/y")
    assert not [ref for ref in client.processors() if {"team/x", "team/y"} & set(ref.names)]


def test_a_refused_registration_is_logged(strict: RunningServer, client: Client) -> None:
    with pytest.raises(PayloadError):
        client.register(AddOne.to_str(), name="logged/unsigned")
    wait_for(strict, "PayloadError: ")
    with pytest.raises(InvalidArgument):
        client.register(AddOne, name="a\nline of its own \x1b[31m" + 2000 * "x")
    wait_for(strict, "InvalidArgument: ")
    lines = strict.log.read_text().splitlines()
    assert not [line for line in lines if "\x1b" in line or line.startswith("line of its own")]
    (line,) = (line for line in lines if "InvalidArgument: " in line)
    assert len(line) < 1000


def test_a_removed_key(strict: RunningServer, client: Client, folder: Path) -> None:
    subprocess.run(
        [COMMAND, "payload", "keygen", str(folder / "keys/leaked")], check=True, capture_output=True, timeout=200
    )
    strict.process.send_signal(signal.SIGHUP)
    wait_for(strict, "reloaded 2 trusted keys")
    client.register(AddOne, name="leaked/plus", signing_key=folder / "keys" / "leaked")
    assert torch.equal(apply(client, "leaked/plus"), torch.ones(1, VOCAB))
    (folder / "keys" / "leaked.pub").unlink()
    strict.process.send_signal(signal.SIGHUP)
    wait_for(strict, "reloaded 1 trusted keys")
    with pytest.raises(RequestsFailed, match="does not trust"):
        apply(client, "leaked/plus")


def wait_for(running: RunningServer, line: str) -> None:
    wait_until(lambda: line in running.log.read_text(), running.log.read_text)


def test_an_engine_runs_only_programs_that_it_trusts(
    client: Client, server: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs the others, on the logits that the engine sends."""
    program, key = build.temperature().program, str(folder / "keys" / "team")
    monkeypatch.setenv("LOGITPORT_PROGRAM_KEYS", str(folder / "keys"))
    with Client(server.target) as other, other.session(vocab_size=VOCAB, programs="trusted") as session:
        unsigned = session.add(Request([1], processors=[(program, {"temperature": 2.0})]))
        pending = session.begin_add([Request([1], processors=[(program, {"temperature": 2.0})])])[0].result(30)
        assert unsigned.sends_logits
        assert pending.sends_logits
        logits = np.full((2, VOCAB), 4.0, np.float32)
        session.step({unsigned: [], pending: []}).apply(logits)
        assert (logits == 2.0).all()
    client.register(program, name="team/temperature", signing_key=key, shared=True)
    with Client(client.target) as other:
        for mode in ("trusted", "all"):
            with other.session(vocab_size=VOCAB, programs=mode) as session:
                signed = session.add(Request([1], processors=[("team/temperature", {"temperature": 2.0})]))
                assert signed.reads_logits
                assert not signed.sends_logits
        monkeypatch.setenv("LOGITPORT_PROGRAM_KEYS", "")
        with other.session(vocab_size=VOCAB, programs="trusted") as session:
            assert session.add(Request([1], processors=[("team/temperature", {"temperature": 2.0})])).sends_logits
