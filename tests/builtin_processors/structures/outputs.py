"""Outputs of grammars, by a tokenizer with special tokens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.edits import EditKind, Edits, RowEdits, unpack_bits
from logitport.core.history import History
from logitport.processors import EditRequest
from logitport_builtins import Grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

EOS, VOCAB = 1, 352
SPECIAL = {"[TOOL_CALLS]": 313, "<|call|>": 314, "<tool_call>": 315, "</tool_call>": 316}


class Output:
    """A request with a grammar, its output, and the ids that may follow."""

    def __init__(self, params: dict[str, Any], eos_token_ids: Sequence[int] = (EOS,)) -> None:
        self.processor = Grammar()
        self.request = EditRequest(params, History([2, 3]), VOCAB, eos_token_ids=tuple(eos_token_ids))
        self.processor.start(self.request)

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self.request.history.output_token_ids.tolist()
        return ids

    def append(self, *token_ids: int, draft: bool = False) -> None:
        for token_id in token_ids:
            self.request.history.draft_tokens += draft
            self.request.history.append(token_id)
            self.processor.advance(self.request, token_id)

    def cut(self, length: int) -> None:
        self.request.history.rewind(self.request.history.prompt_length + length)
        self.processor.rewind(self.request)

    def allowed(self) -> list[int]:
        edits = RowEdits()
        self.processor.edit_batch([self.request], [edits])
        allowed = np.zeros(VOCAB, bool)
        unpacked = Edits.pack([(0, edits)], VOCAB).unpack(1)[0]
        if not unpacked:  # after a draft token that the grammar does not allow
            return list(range(VOCAB))
        ((kind, ids, _),) = unpacked
        if kind is EditKind.BITMASK:
            allowed |= unpack_bits(ids, VOCAB)
        else:
            assert kind is EditKind.ALLOW
            allowed[ids] = True
        found: list[int] = np.flatnonzero(allowed).tolist()
        return found


def sample(output: Output, tokenizer: Tokenizer, wanted: Sequence[str], seed: int, steps: int = 120) -> str | None:
    """Append random allowed ids, often those that begin a wanted text. Returns the ended text; None without an end."""
    choose, planned = random.Random(seed), list[int]()
    for step in range(steps):
        allowed = output.allowed()
        assert allowed
        if EOS in allowed and (len(allowed) == 1 or choose.random() < (0.02 if step < steps // 2 else 0.8)):
            return tokenizer.decode(output.ids, skip_special_tokens=False)
        if not planned and choose.random() < 0.3:
            planned = tokenizer.encode(choose.choice(wanted)).ids
        following = planned.pop(0) if planned else -1
        if following not in allowed:
            planned, following = [], choose.choice([one for one in allowed if one != EOS])
        output.append(following)
    return None


def accepts(params: dict[str, Any], tokenizer: Tokenizer, text: str) -> bool:
    """Whether the grammar allows each id of the tokenizer's encoding of a text, and then the end."""
    output = Output(params)
    for token_id in tokenizer.encode(text, add_special_tokens=False).ids:
        output.append(token_id)
    return not output.request.state.mismatched and EOS in output.allowed()
