"""A tokenizer with the ids of Qwen3's tags, and with few other texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 151_936  # of the model: padded
ORDINARY = 151_643  # ids of ordinary texts
THINK, END_OF_THINKING, TOOL_CALL, END_OF_TOOL_CALL, EOS = 151_667, 151_668, 151_657, 151_658, 151_645
NEWLINE = 198
_NAMES = {
    THINK: "<think>",
    END_OF_THINKING: "</think>",
    TOOL_CALL: "<tool_call>",
    END_OF_TOOL_CALL: "</tool_call>",
    EOS: "<|im_end|>",
}
_SPECIAL = {EOS}  # the tags are ordinary added tokens in Qwen3


def write_qwen(folder: Path) -> Tokenizer:
    """Write the files of the tokenizer. The first 256 ids are single bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    at = letters.index("Ċ")  # a newline
    letters[at], letters[NEWLINE] = letters[NEWLINE], letters[at]
    vocabulary = {letter: at for at, letter in enumerate(letters)}
    vocabulary |= {f"~{at}~": at for at in range(len(letters), ORDINARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(_NAMES.get(at, f"<|{at}|>"), special=at in _SPECIAL, normalized=False)
            for at in range(ORDINARY, END_OF_THINKING + 1)
        ]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return tokenizer
