"""Errors, logs and metrics name a shipped processor by its class, not only by its digest."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    InvalidArgument,
    LogitportError,
    PayloadError,
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


class TriesForbiddenAccess(CustomLogitProcessor):
    """Reads a missing file or connects to a closed port. Both fail with any sandbox and without one."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        if custom_param_list[0]["way"] == "file":
            open("/no/such/file").close()
        else:
            socket.create_connection(("127.0.0.1", 1), 60.0)
        return logits


class RaisesInStart(EditProcessor):
    """Raises when the state of a request is built."""

    def start(self, request: EditRequest) -> None:
        open("/no/such/vocabulary.json").close()

    def edit(self, request: EditRequest, edits: RowEdits) -> None: ...


class RaisesInEdit(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        raise ValueError("it did")


class ExitsInEdit(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(3)


def first_error(client: Client, processor: Any, params: dict[str, Any], by: str = "apply") -> LogitportError:
    """Return the error of a request with only this processor."""
    request = Request([1], processors=[(processor, params)])
    if by == "apply":
        return client.apply(torch.zeros(1, VOCAB), [request], check=False).failures[0]
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        handle = session.add(request)
        return session.step({handle: []}).apply(torch.zeros(1, VOCAB), check=False).failures[handle]


@pytest.mark.parametrize("by", ["apply", "session"])
def test_an_id_outside_the_vocabulary_names_its_processor(client: Client, by: str) -> None:
    error = first_error(client, Ban, {"token_ids": [1, VOCAB]}, by)
    assert isinstance(error, InvalidArgument)
    assert re.fullmatch(
        rf"processor Ban \(sha256:[0-9a-f]{{12}}\): DENY of token id {VOCAB}: ids must lie in \[0, {VOCAB}\)",
        error.message,
    )


@pytest.mark.parametrize("by", ["apply", "session"])
@pytest.mark.parametrize("way", ["file", "network"])
def test_the_error_of_a_refused_access_names_the_sandbox(client: Client, way: str, by: str) -> None:
    error = first_error(client, TriesForbiddenAccess, {"way": way}, by)
    assert isinstance(error, ProcessorFailed)
    assert re.match(r"processor TriesForbiddenAccess \(sha256:[0-9a-f]{12}\) raised (\w*Error): \[Errno", error.message)
    assert error.message.endswith(HINT)


def test_access_refused_at_admission(client: Client) -> None:
    error = first_error(client, RaisesInStart, {})
    assert "raised FileNotFoundError" in error.message
    assert error.message.endswith(HINT)


def test_the_error_of_a_lost_worker_names_the_processor_that_ended_it(client: Client) -> None:
    error = first_error(client, ExitsInEdit, {}, "session")
    assert re.match(r"processor ExitsInEdit \(sha256:[0-9a-f]{12}\): its worker ", error.message)


def test_other_errors_do_not_name_the_sandbox(client: Client) -> None:
    assert "sandbox" not in first_error(client, RaisesInEdit, {}).message


def test_the_description_has_class_and_dialect(client: Client) -> None:
    ref = client.register(Ban, name="test-names/ban", replace=True)
    assert (ref.class_name, ref.dialect, ref.display_name) == ("Ban", "edits", f"Ban (sha256:{ref.digest[:12]})")
    assert client.processor("test-names/ban") == ref
    assert ref in client.processors()
    assert client.register(TriesForbiddenAccess).dialect == "sglang"
    assert client.register(lambda input_ids, scores: scores).dialect == "transformers"
    assert client.processor("grammar").dialect == "edits"
    client.delete(ref.digest)


def test_a_string_without_a_class_name_is_named_by_its_digest(client: Client) -> None:
    """SGLang makes such strings."""
    ref = client.register(json.dumps({"callable": json.loads(Ban.to_str())["callable"]}))
    assert (ref.class_name, ref.dialect, ref.display_name) == ("", "", ref.digest)
    client.delete(ref.digest)


@pytest.mark.parametrize("class_name", ["disallowed_tokens (sha256:0)", "\x1b[2J", "Ban\nINFO forged", "X" * 65])
def test_a_misleading_class_name_is_refused(client: Client, class_name: str) -> None:
    with pytest.raises(PayloadError, match='"class" '):
        client.register(json.dumps({**json.loads(RaisesInEdit.to_str()), "class": class_name}))


def test_metrics_are_labelled_with_the_name(server: RunningServer, client: Client) -> None:
    first_error(client, RaisesInEdit, {}, "session")
    ref = client.register(Ban)
    client.apply(torch.zeros(1, VOCAB), [Request([1], processors=[(Ban, {"token_ids": [1]})])])

    def metric_exists(pattern: str) -> bool:
        with urllib.request.urlopen(server.metrics_url, timeout=200) as answer:
            return re.search(pattern, answer.read().decode()) is not None

    wait_until(lambda: metric_exists(rf'logitport_rows_applied_total{{processor="{re.escape(ref.display_name)}"}}'))
    # Metrics of a session are updated shortly after the reply.
    wait_until(
        lambda: metric_exists(
            r'logitport_requests_failed_total{code="PROCESSOR_FAILED",processor="RaisesInEdit \(sha256:'
        )
    )
