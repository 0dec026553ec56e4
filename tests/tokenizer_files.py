"""Creates tokenizer files with byte-level vocabularies of a few hundred ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EOS = "<|end|>"
PAD = "<|pad|>"

_JSON_LIKE = [
    json.dumps({"name": name, "age": age, "tags": ["red", "green", "blue"], "ok": True, "kind": "a"}, indent=indent)
    for name in ("Ann", "Bob", "Grüße", "名前")
    for age in (1, 27, 143, -5)
    for indent in (None, 2)
]


def write_vocabulary(folder: Path, pieces: Sequence[str], special: Sequence[str] = (EOS,)) -> None:
    """Write a tokenizer.json with these ASCII pieces and then the special tokens as ids, without merges."""
    tokenizer = Tokenizer(models.BPE(vocab={_spelled(piece): at for at, piece in enumerate(pieces)}, merges=[]))
    _save(tokenizer, folder, special)


def write_trained(folder: Path, vocab_size: int = 313, **settings: dict[str, Any]) -> Tokenizer:
    """Write a tokenizer.json of byte-level BPE trained on JSON, with all 256 bytes, and `settings` as further files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_JSON_LIKE * 20, trainer)
    _save(tokenizer, folder, ())
    for name, content in settings.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return tokenizer


def write_pieces(folder: Path, pieces: Sequence[str], decoder: Any, special: Sequence[str] = (EOS,)) -> Tokenizer:
    """Write a tokenizer.json with these pieces, as the vocabulary spells them, then `special`, and with a decoder."""
    tokenizer = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=[]))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(special))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def _save(tokenizer: Tokenizer, folder: Path, special: Sequence[str]) -> None:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def _spelled(piece: str) -> str:
    """Spell ASCII as byte-level BPE does: characters that cannot be printed are moved up by 256."""
    return "".join(char if "!" <= char <= "~" else chr(ord(char) + 256) for char in piece)
