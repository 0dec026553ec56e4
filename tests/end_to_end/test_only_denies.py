"""What processors declare about their effect reaches the engine with the admission of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, CustomLogitProcessor, EditProcessor, Request, TensorProcessor
from logitport_builtins import BUILTINS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport import EditRequest, RowEdits
    from logitport.session import Session

INF = float("inf")
TAGS = {"thinking_start_ids": [2], "thinking_end_ids": [9]}
BUDGET = {"thinking_budget": 3, **TAGS}
DENIES = {
    *("bad_words", "banned_strings", "disallowed_tokens", "force_prefix", "grammar", "loop_guard", "min_tokens"),
    *("no_repeat_ngram", "stop_on", "thinking_budget"),
}


class Denies(EditProcessor):
    """Denies the largest id, and adds to the logits of another one if a request has "push"."""

    only_denies = True

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([request.vocab_size - 1])
        if request.params.get("push"):
            edits.bias([3], [1.0])


class DeniesUnlessPushed(Denies):
    only_denies = ("push",)


class Says(Denies):
    only_denies = "yes"  # type: ignore[assignment]


class Reads(CustomLogitProcessor):
    only_denies = True

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class DeniesIfLarge(TensorProcessor):
    """A program, of which it is derived that it only denies."""

    def process(self, logits: Any, params: Any, history: Any) -> Any:
        return logits.masked_fill(logits > 1, -INF)


class HalvesIfLarge(TensorProcessor):
    def process(self, logits: Any, params: Any, history: Any) -> Any:
        return logits.where(logits <= 1, logits / 2)


class DeclaresNothing(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None: ...


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    with client.session(vocab_size=32, dtype="float32", eos_token_ids=[1]) as session:
        yield session


def test_the_builtins_that_declare_it() -> None:
    assert {name for name, builtin in BUILTINS.items() if getattr(builtin, "only_denies", False)} == DENIES


@pytest.mark.parametrize(
    ("chain", "declared"),
    [
        ([("disallowed_tokens", {"token_ids": [3]})], True),
        ([("disallowed_tokens", {"token_ids": [3]}), ("no_repeat_ngram", {"ngram_size": 2})], True),
        ([("disallowed_tokens", {"token_ids": [3]}), ("logit_bias", {"logit_bias": {"3": 1}})], False),
        ([("thinking_budget", BUDGET)], True),
        ([("thinking_budget", {**BUDGET, "soft_from": 1})], False),
        ([("disallowed_tokens", {"token_ids": [3], "phase": "answer", "phase_tags": TAGS})], True),
        ([("top_k", {"top_k": 3})], True),
        ([("top_p", {"top_p": 0.5}), ("temperature", {"temperature": 2.0})], False),
        ([(HalvesIfLarge, {})], False),
        ([(DeniesIfLarge, {})], True),
        ([(Denies, {})], True),
        ([(Denies, {}), ("min_p", {"min_p": 0.1})], True),
        ([(DeniesUnlessPushed, {})], True),
        ([(DeniesUnlessPushed, {"push": 1})], False),
        ([(Says, {})], False),
        ([(Reads, {})], True),
        ([(DeclaresNothing, {})], False),
    ],
    ids=str,
)
def test_a_chain_declares_it_if_each_of_its_processors_does(session: Session, chain: Any, declared: bool) -> None:
    assert session.add(Request([4], processors=chain)).only_denies == declared


def test_a_processor_that_adds_to_logits_against_its_declaration_fails(session: Session) -> None:
    handle, other = (session.add(Request([4], processors=[(Denies, {"push": push})])) for push in (1, 0))
    result = session.step({handle: [], other: []}).apply(np.zeros((2, 32), np.float32), check=False)
    assert "only_denies" in str(result.failures[handle])
    assert other not in result.failures
