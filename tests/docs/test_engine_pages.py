"""docs/engines: their examples are valid, and the statements on mistyped keys are true."""

from __future__ import annotations

import ast
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import EditProcessor, InvalidArgument, Request
from logitport.integrations.common import request_keys
from logitport.integrations.common.chains import chain_of
from logitport.system.variables import OF_THE_SDK
from logitport_server.config import ServerConfig
from tests.docs.pages import ROOT, blocks, read
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logitport import Client, EditRequest, LogitportError, RowEdits
    from logitport.session import Handle

# The page of the C library is tested in tests/core/library.
PAGES = sorted(page for page in (ROOT / "docs" / "engines").glob("*.md") if page.stem not in ("modes", "c"))
OWN, VLLM = read("docs/engines/your-own.md"), read("docs/engines/vllm.md")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@every_page
def test_the_service_is_started_first_where_one_is_needed(page: Path) -> None:
    first = blocks(page.read_text(), "sh")[0]
    if page.stem not in ("sglang", "your-own"):
        assert first.startswith("pip install")
        assert "(../embedded.md)" in page.read_text()
        return
    assert first.startswith("logitport serve")
    if "127.0.0.1" in first:
        assert ServerConfig().listen in first


@every_page
def test_the_examples_parse(page: Path) -> None:
    for block in blocks(page.read_text(), "python"):
        ast.parse(block)
    for block in blocks(page.read_text(), "sh"):
        shlex.split(block, comments=True)


class Favors(EditProcessor):
    """Forces the id in its parameters."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        if "token_id" not in params:
            raise InvalidArgument("send token_id")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(request.params["token_id"])


def test_the_loop_without_a_wait(client: Client) -> None:
    program, _ = blocks(OWN)
    made: dict[str, Any] = {}
    exec(program, made)
    ended: dict[str, LogitportError] = {}
    arrived = [
        Request([1], processors=[(Favors, params)], request_id=name)
        for name, params in (("good", {"token_id": 5}), ("bad", {}))
    ]
    denied: list[Any] = []

    def forward(rows: Any) -> Any:
        denied.append(np.zeros((len(rows), 8), np.float32))
        return denied[-1]

    with client.session(vocab_size=8) as session:
        running: dict[Handle, list[int]] = {}
        result = made["decode_step"](session, running, arrived, [], forward, ended.__setitem__)
        assert [(name, type(error)) for name, error in ended.items()] == [("bad", InvalidArgument)]
        good, bad = running
        assert (denied[-1][0].argmax(), list(result.failures)) == (5, [bad])
        result = made["decode_step"](session, {good: [5]}, arrived[:1], [bad], forward, ended.__setitem__)
        assert (denied[-1].argmax(axis=1).tolist(), result.failures, len(session)) == ([5, 5], {}, 2)


def test_the_loop_with_slow_admissions(client: Client) -> None:
    _, program = blocks(OWN)
    made: dict[str, Any] = {}
    exec(program, made)
    ended: dict[str, LogitportError] = {}
    with client.session(vocab_size=8) as session:
        for name, params in (("good", {"token_id": 5}), ("bad", {})):
            session.begin_add([Request([1], processors=[(Favors, params)], request_id=name)])
        session.begin_add(
            [Request([1], processors=[("disallowed_tokens", {"token_ids": [0]})], request_id="built-in")]
        )[0]
        new_ids: dict[Handle, list[int]] = {}

        def step() -> bool:
            nonlocal new_ids
            new_ids = made["decode_step"](
                session, new_ids, lambda rows: np.zeros((len(rows), 8), np.float32), ended.__setitem__
            )
            return len(new_ids) == 2 and len(ended) == 1

        wait_until(step)
        assert {handle.request_id: ids for handle, ids in new_ids.items()} == {"built-in": [1], "good": [5]}
        assert [(name, type(error)) for name, error in ended.items()] == [("bad", InvalidArgument)]


def test_the_body_of_the_curl_example() -> None:
    (command,) = [block for block in blocks(VLLM, "sh") if block.startswith("curl")]
    body = json.loads(shlex.split(command)[-1])
    assert chain_of(body["vllm_xargs"]) == [("no_repeat_ngram", {"ngram_size": 3})]


@pytest.mark.parametrize("page", ["vllm", "sglang"])
def test_every_variable_is_one(page: str) -> None:
    named = set(re.findall(r"`(LOGITPORT_\w+)`", read(f"docs/engines/{page}.md")))
    assert named
    assert named <= set(OF_THE_SDK)


def test_a_mistyped_key_gets_the_default_chain_and_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_keys, "_warned", set())
    default, mistyped = [("disallowed_tokens", {"token_ids": [1]})], {"logitprot": [["no_repeat_ngram", {}]]}
    assert chain_of(mistyped, default) == default
    request_keys.check_keys(mistyped, "extra_args")
    assert "'logitprot'" in caplog.text


@pytest.mark.parametrize("value", ["no_repeat_ngram", {"no_repeat_ngram": {}}, [["no_repeat_ngram", 3]], [3]])
def test_a_list_of_another_form_is_an_error_with_an_example(value: object) -> None:
    with pytest.raises(InvalidArgument, match=re.escape('[["disallowed_tokens", {"token_ids": [1]}]]')):
        chain_of({"logitport": value})
