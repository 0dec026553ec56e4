"""What a shipped processor is called where people read of it: by its class, never by a digest alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    AsyncClient,
    Client,
    CustomLogitProcessor,
    EditProcessor,
    InvalidTokenId,
    LogitportError,
    MalformedPayload,
    ProcessorFailed,
    Request,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from logitport import EditRequest, RowEdits
    from tests.conftest import RunningServer

VOCAB = 32
HINT = "package installed with the server; see docs/security.md)"


class Ban(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.params["token_ids"])


class Reaches(CustomLogitProcessor):
    """Reads a file that is nowhere, or asks for a connection that nobody takes: refused with any sandbox, or none."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        if custom_param_list[0]["way"] == "file":
            open("/no/such/file").close()
        else:
            socket.create_connection(("127.0.0.1", 1), 60.0)
        return logits


class Start(EditProcessor):
    """Fails where a request's state is built."""

    def start(self, request: EditRequest) -> None:
        open("/no/such/vocabulary.json").close()

    def edit(self, request: EditRequest, edits: RowEdits) -> None: ...


class Falls(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        raise ValueError("it did")


class Leaves(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(3)


def first_error(client: Client, processor: Any, params: dict[str, Any], by: str = "apply") -> LogitportError:
    """Of a request that has this processor alone."""
    request = Request([1], processors=[(processor, params)])
    if by == "apply":
        return client.apply(torch.zeros(1, VOCAB), [request], check=False).failures[0]
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handle = session.add(request)
        return session.step({handle: []}).apply(torch.zeros(1, VOCAB), check=False).failures[handle]


@pytest.mark.parametrize("by", ["apply", "session"])
def test_an_id_outside_the_vocabulary_names_the_processor_that_said_it(client: Client, by: str) -> None:
    error = first_error(client, Ban, {"token_ids": [1, VOCAB]}, by)
    assert isinstance(error, InvalidTokenId)
    assert re.fullmatch(
        rf"processor Ban \(sha256:[0-9a-f]{{12}}\): DENY of token id {VOCAB}: ids must lie in \[0, {VOCAB}\)",
        error.message,
    )


@pytest.mark.parametrize("by", ["apply", "session"])
@pytest.mark.parametrize("way", ["file", "network"])
def test_what_the_sandbox_refuses_is_told_to_be_its_doing(client: Client, way: str, by: str) -> None:
    error = first_error(client, Reaches, {"way": way}, by)
    assert isinstance(error, ProcessorFailed)
    assert re.match(r"processor Reaches \(sha256:[0-9a-f]{12}\) raised (\w*Error): \[Errno", error.message)
    assert error.message.endswith(HINT)


def test_what_the_sandbox_refuses_when_a_request_is_admitted(client: Client) -> None:
    error = first_error(client, Start, {})
    assert "raised FileNotFoundError" in error.message
    assert error.message.endswith(HINT)


def test_a_worker_that_was_lost_names_the_processor_that_ended_it(client: Client) -> None:
    error = first_error(client, Leaves, {}, "session")
    assert re.match(r"processor Leaves \(sha256:[0-9a-f]{12}\): its worker ", error.message)


def test_other_errors_say_nothing_of_the_sandbox(client: Client) -> None:
    assert "sandbox" not in first_error(client, Falls, {}).message


def test_the_description_tells_class_and_dialect(client: Client) -> None:
    ref = client.register(Ban, name="test-names/ban", replace=True)
    assert (ref.class_name, ref.dialect, ref.display_name) == ("Ban", "edits", f"Ban (sha256:{ref.digest[:12]})")
    assert client.processor("test-names/ban") == ref
    assert ref in client.processors()
    assert client.register(Reaches).dialect == "sglang"
    assert client.register(lambda input_ids, scores: scores).dialect == "transformers"
    assert client.processor("grammar").dialect == "edits"
    client.delete(ref.digest)


def test_the_asynchronous_client_tells_the_same(server: RunningServer) -> None:
    async def ask() -> None:
        async with AsyncClient(server.target) as client:
            ref = await client.register(Ban)
            assert (ref.class_name, ref.dialect) == ("Ban", "edits")
            request = Request([1], processors=[(Ban, {"token_ids": [1]})])
            result = await client.apply(torch.zeros(1, VOCAB), [request])
        assert result.rows_applied == {ref.display_name: 1}

    asyncio.run(ask())


@pytest.mark.parametrize("how", ["class", "digest", "name"])
def test_rows_are_told_by_the_same_name_however_a_request_names_the_processor(client: Client, how: str) -> None:
    ref = client.register(Ban, name="test-names/rows", replace=True)
    named = {"class": Ban, "digest": ref.digest, "name": "test-names/rows"}[how]
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handle = session.add(Request([1], processors=[(named, {"token_ids": [1]})]))
        assert session.step({handle: []}).apply(torch.zeros(1, VOCAB)).rows_applied == {ref.display_name: 1}
    client.delete(ref.digest)


def test_a_string_that_says_no_class_is_told_by_its_digest(client: Client) -> None:
    """As SGLang makes them."""
    ref = client.register(json.dumps({"callable": json.loads(Ban.to_str())["callable"]}))
    assert (ref.class_name, ref.dialect, ref.display_name) == ("", "", ref.digest)
    client.delete(ref.digest)


@pytest.mark.parametrize("class_name", ["disallowed_tokens (sha256:0)", "\x1b[2J", "Ban\nINFO forged", "X" * 65])
def test_a_name_that_could_pass_for_something_else_is_refused(client: Client, class_name: str) -> None:
    with pytest.raises(MalformedPayload, match='"class" '):
        client.register(json.dumps({**json.loads(Falls.to_str()), "class": class_name}))


def test_metrics_are_labelled_by_it(server: RunningServer, client: Client) -> None:
    first_error(client, Falls, {}, "session")
    ref = client.register(Ban)
    client.apply(torch.zeros(1, VOCAB), [Request([1], processors=[(Ban, {"token_ids": [1]})])])

    def told(pattern: str) -> bool:
        with urllib.request.urlopen(server.metrics_url, timeout=200) as answer:
            return re.search(pattern, answer.read().decode()) is not None

    wait_until(lambda: told(rf'logitport_rows_applied_total{{processor="{re.escape(ref.display_name)}"}}'))
    # What a session was answered is counted a little later.
    wait_until(lambda: told(r'logitport_requests_failed_total{code="\w+_PROCESSOR_FAILED",processor="Falls \(sha256:'))
