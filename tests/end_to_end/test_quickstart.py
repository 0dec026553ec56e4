"""The examples of the README and their variants."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, CustomLogitProcessor, EditProcessor, EditRequest, NameTaken, NotFound, Request, RowEdits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB = 151_936
INF = float("inf")
DIGITS = list(range(15, 25))  # token ids of Qwen's tokenizer


class BanDigits(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        logits[:, DIGITS] = float("-inf")
        return logits


class BanDigitsSoftly(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        logits[:, DIGITS] -= 1
        return logits


class BanLast(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if request.history.last_output is not None:
            edits.deny([request.history.last_output])


@pytest.fixture
def names(client: Client) -> Iterator[Callable[[str], str]]:
    """Make names unique to this test, and delete them afterwards."""
    made = []

    def name(suffix: str) -> str:
        made.append(f"quickstart/{suffix}")
        return made[-1]

    yield name
    for each in made:
        client.delete(each)


def denied(row: Any) -> list[int]:
    return np.flatnonzero(np.asarray(row, np.float32) == -INF).tolist()


def test_register_and_apply(client: Client, names: Any) -> None:
    ref = client.register(BanDigits, name=names("ban-digits"))
    assert ref.names == ("quickstart/ban-digits",)
    assert len(ref.digest) == 64
    logits = torch.zeros(1, VOCAB)
    request = Request(
        prompt_token_ids=[9707, 11],
        output_token_ids=[3838],
        processors=[("disallowed_tokens", {"token_ids": [1, 2]}), (BanDigits, {})],
    )
    out = client.apply(logits, [request], num_tokens_in_batch=1)
    assert denied(out.logits[0]) == [1, 2, *DIGITS]
    assert not logits.any(), "what was passed stays as it is"
    assert out.rows_applied == {"disallowed_tokens": 1, ref.display_name: 1}


@pytest.mark.parametrize("transport", ["local", "grpc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, "float16", "float32"])
def test_a_session(client: Client, dtype: Any, transport: Any) -> None:
    with client.session(vocab_size=VOCAB, dtype=dtype, transport=transport) as session:
        first = session.add(Request([3], processors=[(BanLast, {})]))
        second = session.add(Request([4], processors=[("no_repeat_ngram", {"ngram_size": 1}), (BanDigits, {})]))
        is_torch = isinstance(dtype, torch.dtype)
        logits: Any = torch.zeros(2, VOCAB, dtype=dtype) if is_torch else np.zeros((2, VOCAB), dtype)
        result = session.step({first: [7], second: [8, 9]}).apply(logits)
        rows = logits.float() if is_torch else logits
        assert denied(rows[0]) == [7]
        assert denied(rows[1]) == [4, 8, 9, *DIGITS]
        assert result.failures == {}
        session.remove(first)
        only = logits[:1] * 0 if is_torch else np.zeros((1, VOCAB), dtype)
        only[:] = 0
        session.step({second: [5]}, rows=[second]).apply(only)
        assert denied(only.float()[0] if is_torch else only[0]) == [4, 5, 8, 9, *DIGITS]


@pytest.mark.parametrize(
    "logits",
    [
        *(torch.zeros(2, 8, dtype=dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        *(np.zeros((2, 8), dtype) for dtype in ("float32", "float16")),
    ],
)
def test_tensors_keep_their_type_and_device(client: Client, logits: Any) -> None:
    out = client.apply(logits, [Request(processors=[("disallowed_tokens", {"token_ids": [3]})]), Request()]).logits
    assert type(out) is type(logits)
    assert out.dtype == logits.dtype
    assert out.tolist() == [[-INF if at == 3 else 0.0 for at in range(8)], [0.0] * 8]


def test_all_ways_to_name_a_processor(client: Client, names: Any) -> None:
    name = names("named")
    ref = client.register(BanDigits, name=name)
    for processor in (name, ref.digest, ref, BanDigits, BanDigits(), BanDigits.to_str()):
        out = client.apply(torch.zeros(1, 32), [Request(processors=[(processor, {})])])
        assert denied(out.logits[0]) == DIGITS
        assert out.rows_applied == {ref.display_name: 1}


def test_registering_twice_gives_the_same_digest(client: Client, names: Any) -> None:
    first = client.register(BanDigits)
    again = client.register(BanDigits, name=names("again"))
    as_string = client.register(BanDigits.to_str())
    assert first.digest == again.digest == as_string.digest
    assert client.processor(first.digest) == client.processor("quickstart/again") == as_string
    assert [ref for ref in client.processors() if ref.digest == first.digest] == [as_string]


def test_a_name_is_rebound_only_explicitly_and_not_for_existing_requests(client: Client, names: Any) -> None:
    name = names("ban")
    hard = client.register(BanDigits, name=name)
    with client.session(vocab_size=32, dtype=torch.float32) as session:
        before = session.add(Request(processors=[(name, {})]))
        with pytest.raises(NameTaken, match=re.escape(f"'{name}' is bound to {hard.display_name}")):
            client.register(BanDigitsSoftly, name=name)
        soft = client.register(BanDigitsSoftly, name=name, replace=True)
        after = session.add(Request(processors=[(name, {})]))
        logits = torch.zeros(2, 32)
        result = session.step({before: [], after: []}).apply(logits)
        assert logits[:, DIGITS[0]].tolist() == [-INF, -1]
        assert result.rows_applied == {hard.display_name: 1, soft.display_name: 1}


def test_a_deleted_processor_still_works_for_existing_requests(client: Client) -> None:
    ref = client.register(BanDigits, name="quickstart/short-lived")
    with client.session(vocab_size=32, dtype=torch.float32) as session:
        handle = session.add(Request(processors=[("quickstart/short-lived", {})]))
        assert client.delete(ref.digest) == ("quickstart/short-lived",)
        with pytest.raises(NotFound):
            session.add(Request(processors=[(ref.digest, {})]))
        logits = torch.zeros(1, 32)
        session.step({handle: [1]}).apply(logits)
        assert denied(logits[0]) == DIGITS


def test_edits_can_be_read_without_logits(client: Client) -> None:
    """An engine can broadcast the edits to its ranks."""
    with client.session(vocab_size=32) as session:
        handle = session.add(Request([5], processors=[("disallowed_tokens", {"token_ids": [3]})]))
        pending = session.step({handle: []})
        assert pending.edits().ids.tolist() == [3]
        logits = np.zeros((1, 32), np.float32)
        pending.apply(logits)
        assert denied(logits[0]) == [3]


def test_speculation(client: Client) -> None:
    with client.session(vocab_size=64, dtype=torch.float32, max_draft_tokens=2) as session:
        chain = [("no_repeat_ngram", {"ngram_size": 1}), (BanDigits, {})]
        handle = session.add(Request([1], processors=chain))
        logits = torch.zeros(3, 64)
        session.step({handle: [2]}, drafts={handle: [3, 4]}).apply(logits)
        assert [denied(row) for row in logits] == [[1, 2, *DIGITS], [1, 2, 3, *DIGITS], [1, 2, 3, 4, *DIGITS]]
        logits = torch.zeros(2, 64)
        session.step({handle: [3, 9]}, drafts={handle: [5]}, rows=[(handle, 1), handle]).apply(logits)
        assert [denied(row) for row in logits] == [[1, 2, 3, 5, 9, *DIGITS], [1, 2, 3, 9, *DIGITS]]


def test_rewinding(client: Client) -> None:
    with client.session(vocab_size=64, dtype=torch.float32) as session:
        handle = session.add(Request([1], processors=[("no_repeat_ngram", {"ngram_size": 1}), (BanLast, {})]))
        session.step({handle: [2, 3, 4]}).apply(torch.zeros(1, 64))
        session.rewind(handle, 2)
        logits = torch.zeros(1, 64)
        session.step({handle: [9]}).apply(logits)
        assert denied(logits[0]) == [1, 2, 9]
