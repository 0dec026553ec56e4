"""Writes the tokenizer of the model of a story: python -m tests.testing.models.story_tokenizer."""

from __future__ import annotations

import json
from typing import Any

from logitport.tokenizers.token_bytes import _BYTES
from logitport_testing import StoryModel

_SPELLED = {byte: character for character, byte in _BYTES.items()}


def files(model: StoryModel) -> dict[str, str]:
    """The contents of the files by name. The tokenizer's ids are those of `StoryModel.encode`."""
    (end,) = model.eos_token_ids
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pieces = {"Regex": r"\n| ?[A-Za-z]+| ?[0-9]|."}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": end, "content": model.token_text(end), **flags}],
        # Each character that the model lacks becomes the one of its unknown id.
        "normalizer": {"type": "Replace", "pattern": {"Regex": r"[^\n\x20-\x7E]"}, "content": model.token_text(0)},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": pieces, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,  # a word of the vocabulary is one id, another one its letters
            "vocab": {
                "".join(_SPELLED[byte] for byte in model.token_text(token_id).encode()): token_id
                for token_id in range(end)
            },
            "merges": [],
        },
    }
    contents = {"tokenizer.json": tokenizer, "generation_config.json": {"eos_token_id": end}}
    return {name: json.dumps(content, ensure_ascii=False) + "\n" for name, content in contents.items()}


if __name__ == "__main__":
    story = StoryModel()
    for name, text in files(story).items():
        (story.tokenizer_path / name).write_text(text, "utf-8")
