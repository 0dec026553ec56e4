"""A model whose texts a grammar can describe, and a folder of programs, for engines without a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from logitport import EditProcessor, EditRequest, RowEdits, TensorProcessor
from logitport.shipping import serialize
from tests.tokenizer_files import EOS, PAD, write_trained

if TYPE_CHECKING:
    from pathlib import Path

    import torch

VOCAB_SIZE = 313
PROMPT = [20, 30, 40]
# A model with random weights does not generate such a text by itself.
REGEX = "(left|right) [0-9]{3}"
GRAMMAR = ("grammar", {"regex": REGEX})
NEGATE = "team/negate"
BAN_ODD = ("disallowed_tokens", {"token_ids": list(range(1, VOCAB_SIZE, 2))})
# The messages that name the way out.
WAY_OUT = "logitport serve"


class Negate(TensorProcessor):
    """Makes the least likely id the likeliest."""

    def process(self, logits: torch.Tensor, params: Any, history: Any) -> torch.Tensor:
        return -logits


class Shipped(EditProcessor):
    """Code, which needs a server."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(request.history.prompt_length)


def write_programs(folder: Path) -> Path:
    """Write the program `NEGATE` to a folder, and make it read-only. Returns the folder."""
    (folder / "team").mkdir(parents=True)
    file = folder / f"{NEGATE}.json"
    file.write_text(serialize(Negate))
    for path in (file, file.parent, folder):
        path.chmod(path.stat().st_mode & ~0o222)
    return folder


def save_text_checkpoint(folder: Path) -> Path:
    """Write a model with a byte-level tokenizer. Returns the folder."""
    from transformers import PreTrainedTokenizerFast

    from tests.engines.checkpoint import save_checkpoint

    save_checkpoint(folder, vocab_size=VOCAB_SIZE)
    tokenizer = write_trained(folder, VOCAB_SIZE)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD).save_pretrained(folder)
    return folder


def text_of(folder: Path, token_ids: list[int]) -> str:
    """Decode ids by the tokenizer of a folder, without the id that ends a text."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json")).decode(token_ids)


def shipped() -> str:
    """Return the string of a class, which has to be loaded."""
    payload = serialize(Shipped)
    assert json.loads(payload), "requests ship JSON"
    return payload
