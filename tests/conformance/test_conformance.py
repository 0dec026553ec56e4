"""Every client passes the same conversations: its results, and its frames, are the recorded ones."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from logitport_proto import processing_pb2
from tests.conformance.clients import CLIENTS, client_command
from tests.conformance.conversation_server import conversation_server
from tests.conformance.conversations import FOLDER, Conversation, Player, load
from tests.conformance.driver_process import running
from tests.conformance.recording import record
from tests.conformance.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.clients import Client

# A stopped server is found 10 s after its deadline. Compilers and other tests may run at the same time.
_MAX_SECONDS = 30


def test_each_scenario_has_a_file() -> None:
    """Otherwise run `python -m tests.conformance`."""
    assert {path.stem for path in FOLDER.glob("*.json")} == set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_files_are_what_a_session_does(name: str) -> None:
    """Otherwise run `python -m tests.conformance`."""
    assert json.loads(record(SCENARIOS[name]).text()) == json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_conversation(client: Client, name: str, built: Callable[[Client], list[str]]) -> None:
    conversation = load(name)
    player = Player(conversation)
    command = built(client)
    begun = time.monotonic()
    with conversation_server(player.connect, local=client.is_local) as server:
        outputs = _outputs(client, command, server.target, conversation)
    assert player.finish() == []
    assert server.local_connections == (len(conversation.connections) if client.is_local else 0) or _refuses(name)
    _compare(conversation, outputs)
    assert time.monotonic() - begun < _MAX_SECONDS


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.embedded])
@pytest.mark.parametrize("client", [each for each in CLIENTS if each.embeds], ids=lambda client: client.name)
def test_an_embedded_session_has_the_same_results(
    client: Client, name: str, built: Callable[[Client], list[str]]
) -> None:
    conversation = load(name)
    _compare(conversation, _outputs(client, built(client), "embedded", conversation))


def test_frames_that_differ_are_noted() -> None:
    player = Player(load("steps"))
    connection = player.connect()
    opening = processing_pb2.OpenSession(vocab_size=24, datatype="FP32", max_draft_tokens=4, eos_token_ids=[7])
    reply = connection.answer(processing_pb2.SessionRequest(seq=1, open=opening))
    assert isinstance(reply, processing_pb2.SessionResponse)
    assert reply.HasField("error")
    opening.eos_token_ids.append(9)
    reply = connection.answer(processing_pb2.SessionRequest(seq=1, open=opening))
    assert isinstance(reply, processing_pb2.SessionResponse)
    assert reply.opened.max_requests > 0
    player.connect()
    found = player.finish()
    assert [text.partition(" ")[0] for text in found[:2]] == ["received", "connection"]
    assert len(found) == 2 + len(load("steps").connections[0]) - 1  # all frames after `open` are missing


def _refuses(name: str) -> bool:
    """Whether a connection was refused, and so has used no other transport."""
    return any("full" in dict(getattr(each, "faults", {})).values() for each in SCENARIOS[name].commands)


def _outputs(client: Client, command: list[str], target: str, conversation: Conversation) -> list[dict[str, Any]]:
    with running(command, target, variables=client.variables()) as driver:
        return [driver.execute(line) for line in conversation.commands]


def _compare(conversation: Conversation, outputs: list[dict[str, Any]]) -> None:
    """Compare outputs with the recorded ones, apart from rows of failed requests, which are not specified."""
    for line, output, recorded in zip(conversation.commands, outputs, conversation.outputs, strict=True):
        found, expected = dict(output), dict(recorded)
        if "error" in expected and "message" not in expected:
            found.pop("message", None)
        for name, failure in expected.get("failures", {}).items():
            if "message" not in failure and name in found.get("failures", {}):
                found["failures"][name].pop("message", None)
        if "events" not in found:  # the SDK has them in each request's report
            expected.pop("events", None)
        for one in (found, expected):
            if "logits" in one:
                one["logits"] = _without_failed(line, one)
        assert found == expected, line


def _without_failed(line: str, output: dict[str, Any]) -> list[str]:
    words = line.split()[1:]
    end = words.index("rows") if "rows" in words else len(words)
    if end < len(words):
        rows = [word.partition("+")[0] for word in words[end + 1 :]]
    else:
        rows = []
        for word in words:
            name, _, drafts, _ = word.split(":")
            rows += [name] * (1 + len([one for one in drafts.split(",") if one]))
    failed = {name for name, one in output["failures"].items() if not one["skipped"]}
    return ["" if name in failed else row for name, row in zip(rows, output["logits"], strict=True)]


@pytest.fixture(scope="module")
def built() -> Callable[[Client], list[str]]:
    """Builds a driver once; returns its command. Skips without the client's tools."""
    return client_command
