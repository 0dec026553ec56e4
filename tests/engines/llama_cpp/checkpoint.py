"""A tiny Llama with random weights as a GGUF file; each word is named after its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 512
BOS, EOS = 1, 2
_WIDTH, _FEED_FORWARD, _HEADS, _LAYERS, _MAX_LENGTH = 64, 128, 2, 2, 512

# Wide weights change the likeliest id from step to step, and give it a lead that exceeds rounding errors.
_DEVIATION = 0.3


def save_gguf(path: Path, *, seed: int = 0) -> Path:
    """Write the model, and return its path. Id 7 is the word "w7"."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_MAX_LENGTH)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    _add_tokenizer(writer)
    random = np.random.default_rng(seed)
    for name, shape in _shapes().items():
        weights = random.normal(0, _DEVIATION, shape) if len(shape) == 2 else np.ones(shape)
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ids_of(text: str) -> list[int]:
    """Return the ids of a text that the model generated."""
    return [int(word.removeprefix("w")) for word in text.split()]


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    words = ["<unk>", "<s>", "</s>", *(f"\N{LOWER ONE EIGHTH BLOCK}w{token_id}" for token_id in range(3, VOCAB_SIZE))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * VOCAB_SIZE)
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (VOCAB_SIZE - len(kinds))])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, rows first."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB_SIZE, _WIDTH),
        "output_norm.weight": (_WIDTH,),
        "output.weight": (VOCAB_SIZE, _WIDTH),
    }
    for layer in range(_LAYERS):
        square = dict.fromkeys(["attn_q", "attn_k", "attn_v", "attn_output"], (_WIDTH, _WIDTH))
        wide = dict.fromkeys(["ffn_gate", "ffn_up"], (_FEED_FORWARD, _WIDTH))
        norms = dict.fromkeys(["attn_norm", "ffn_norm"], (_WIDTH,))
        for name, shape in {**square, **wide, **norms, "ffn_down": (_WIDTH, _FEED_FORWARD)}.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return shapes
