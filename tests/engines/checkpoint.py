"""A tiny checkpoint with random weights that every engine can load: Llama, float32, one word per token id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 512
EOS = 1
MAX_LENGTH = 256

# Wide weights change the likeliest id from step to step, and give it a lead that exceeds rounding errors.
_INITIALIZER_RANGE = 0.3


def save_checkpoint(folder: Path, *, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> Path:
    """Write a model and its tokenizer to the folder; return the folder. Id 7 is the word "w7"; id 1 ends a sequence."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=_INITIALIZER_RANGE,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": EOS} | {f"w{token_id}": token_id for token_id in range(2, vocab_size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<pad>",
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    ).save_pretrained(folder)
    return folder
