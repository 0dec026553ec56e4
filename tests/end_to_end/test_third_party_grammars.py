"""A grammar of another library, shipped by a user as a logits-free processor of a sandboxed worker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from examples.engine import Engine, Model, prompt_lookup
from logitport import Client, EditProcessor, EditRequest, Request, RowEdits
from logitport.core.edits import bitmask_words
from tests.tokenizer_files import EOS, write_trained

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from tests.conftest import RunningServer

VOCAB = 352
EOS_ID = 1
SLOTS = 8
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}, "ok": {"type": "boolean"}},
    "required": ["age", "ok"],
    "additionalProperties": False,
}


class XGrammar(EditProcessor):
    """Parameters: `tokenizer` and `grammar`, a TokenizerInfo and a CompiledGrammar, each as its JSON."""

    def start(self, request: EditRequest) -> None:
        import xgrammar

        tokenizer = xgrammar.TokenizerInfo.deserialize_json(request.params["tokenizer"])
        grammar = xgrammar.CompiledGrammar.deserialize_json(request.params["grammar"], tokenizer)
        matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=list(request.eos_token_ids))
        request.state = {"matcher": matcher, "matched": 0}
        for token_id in request.history.output_token_ids.tolist():
            self.advance(request, token_id)

    def advance(self, request: EditRequest, token_id: int) -> None:
        state = request.state
        if state["matched"] >= len(request.history.output_token_ids) - 1:
            state["matched"] += not state["matcher"].is_terminated() and state["matcher"].accept_token(token_id)

    def rewind(self, request: EditRequest) -> None:
        surplus = request.state["matched"] - len(request.history.output_token_ids)
        if surplus > 0:
            request.state["matcher"].rollback(surplus)
            request.state["matched"] -= surplus

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        state = request.state
        strayed = len(request.history.output_token_ids) - state["matched"]
        if strayed > request.history.draft_tokens:
            raise ValueError("an accepted id is not the grammar's")
        if not strayed and not state["matcher"].is_terminated():
            words = np.zeros((1, bitmask_words(request.vocab_size)), np.int32)
            state["matcher"].fill_next_token_bitmask(words)
            edits.bitmask(words[0])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    return folder, write_trained(folder)


def xgrammar_params(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    xgrammar = pytest.importorskip("xgrammar")
    spelled = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    info = xgrammar.TokenizerInfo(
        spelled, xgrammar.VocabType.BYTE_LEVEL, vocab_size=VOCAB, stop_token_ids=[spelled.index(EOS)]
    )
    compiled = xgrammar.GrammarCompiler(info).compile_json_schema(SCHEMA, any_whitespace=False)
    return {"tokenizer": info.serialize_json(), "grammar": compiled.serialize_json()}


def in_process(processor: EditProcessor, params: dict[str, Any], model: Model, prompt: Sequence[int]) -> list[int]:
    """Run the library for one request in the process of the engine."""
    from logitport.core.edits import Edits
    from logitport.core.history import History
    from logitport.ops import apply_edits

    request = EditRequest(params, History(prompt), VOCAB, eos_token_ids=(EOS_ID,))
    processor.start(request)
    logits = model.forward(0, 0, list(prompt))[-1:]
    output: list[int] = []
    while not output or (output[-1] != EOS_ID and len(output) < 64):
        edits = RowEdits()
        processor.edit(request, edits)
        apply_edits(Edits.pack([(0, edits)], VOCAB), logits)
        output.append(int(logits[0].argmax()))
        request.history.append(output[-1])
        processor.advance(request, output[-1])
        logits = model.forward(0, len(prompt) + len(output) - 1, output[-1:])
    return output


@pytest.mark.timeout(900)  # xgrammar imports transformers and triton, here and in the worker
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_users_own_grammar_runs_isolated_and_unchanged(
    server: RunningServer, tokenizer: tuple[Path, Tokenizer], drafts: int
) -> None:
    """Eight requests at a time, with and without speculation, give the same ids as the library in this process."""
    given = xgrammar_params(*tokenizer)
    prompts = [[number % 7, 5, number] for number in range(12)]
    requests = [
        Request(
            prompt,
            processors=[(XGrammar, given)],
            sampling_params={"max_tokens": 64, "stop_token_ids": [EOS_ID]},
        )
        for prompt in prompts
    ]
    with (
        Client(server.target, timeout=300) as client,
        client.session(vocab_size=VOCAB, eos_token_ids=[EOS_ID], max_draft_tokens=drafts) as session,
    ):
        engine = Engine(session, Model(VOCAB, slots=SLOTS), slots=SLOTS, draft=prompt_lookup if drafts else None)
        generations = engine.generate(requests)
    model = Model(VOCAB, slots=1)
    for one, prompt in zip(generations, prompts, strict=True):
        assert one.error is None, one.error
        assert one.output == in_process(XGrammar(), given, model, prompt)
        text = tokenizer[1].decode(one.output[:-1])
        assert re.fullmatch(r'\{"age": ?\d+, ?"ok": ?(true|false)\}', text)
        assert 0 <= json.loads(text)["age"] <= 150
