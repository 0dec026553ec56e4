"""The bytes that each token id adds to a decoded text."""

from __future__ import annotations

import bisect
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from tokenizers import Tokenizer as HuggingFaceTokenizer

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"
# In a sequence of decoders, these change each token by itself, except that a Strip after a Fuse changes the first one.
_TOKEN_WISE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class UnknownDecoder(ValueError):
    """The decoder changes tokens in a way that is not known here."""


class Texts:
    """Bytes by id, in two arrays. They are read-only, and processes that are forked afterwards share them.

    Args:
        texts: the bytes of each id.

    Attributes:
        longest: length of the longest text, in bytes.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._data = np.frombuffer(b"".join(texts), np.uint8)
        self.longest = max(map(len, texts), default=0)
        self._ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        order = sorted((token_id for token_id, text in enumerate(texts) if text), key=texts.__getitem__)
        self._order = np.array(order, np.int32)  # ids with a text, in the order of their bytes
        self._order.flags.writeable = False

    def __len__(self) -> int:
        return len(self._ends) - 1

    def of(self, token_id: int) -> bytes:
        """The bytes of an id, or b""."""
        if not 0 <= token_id < len(self):
            return b""
        return self._data[self._ends[token_id] : self._ends[token_id + 1]].tobytes()

    def starting_with(self, prefix: bytes) -> NDArray[np.int32]:
        """The ids whose bytes start with these, int32[n], a read-only view in the order of the bytes."""
        low = bisect.bisect_left(self._order, prefix, key=self.of)
        high = bisect.bisect_right(self._order, prefix, lo=low, key=lambda one: self.of(one)[: len(prefix)])
        return self._order[low:high]

    def containing(self, part: bytes) -> NDArray[np.int32]:
        """The ids whose bytes contain these, int32[n], ascending. `part` is not empty."""
        starts = np.flatnonzero(self._data[: len(self._data) - len(part) + 1] == part[0])
        for offset, byte in enumerate(part[1:], 1):
            starts = starts[self._data[starts + offset] == byte]
        ids = np.searchsorted(self._ends, starts, side="right") - 1
        return np.unique(ids[starts + len(part) <= self._ends[ids + 1]]).astype(np.int32)


def read_texts(tokenizer: HuggingFaceTokenizer) -> tuple[Texts, Texts]:
    """Compute the bytes of all ids: those after another token, and those at the start of a text.

    The bytes of all ids in order, joined, are what the tokenizer decodes without special tokens, which have none.
    They may differ where the decoder replaces bytes that are not UTF-8.

    Raises:
        UnknownDecoder: the tokenizer's decoder is of another kind than byte-level, SentencePiece or WordPiece.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True)
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    pieces = [""] * (max(ids.values(), default=-1) + 1)
    for piece, token_id in ids.items():
        pieces[token_id] = "" if token_id in special else piece
    later, first = _decoders(tokenizer)
    texts = Texts([later(piece) if piece else b"" for piece in pieces])
    return texts, texts if first is later else Texts([first(piece) if piece else b"" for piece in pieces])


def _decoders(tokenizer: HuggingFaceTokenizer) -> tuple[Callable[[str], bytes], Callable[[str], bytes]]:
    """Return the functions for tokens after another one, and for the first token."""
    decoder = tokenizer.decoder
    if decoder is None:  # the library then joins the tokens by spaces
        return lambda piece: b" " + piece.encode(), str.encode
    settings = orjson.loads(decoder.__getstate__())
    parts = settings["decoders"] if settings["type"] == "Sequence" else [settings]
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"]:
        return _from_byte_level, _from_byte_level
    if kinds != ["WordPiece"] and not (_TOKEN_WISE.issuperset(kinds) and all(map(_is_token_wise, parts))):
        raise UnknownDecoder(f"its decoder is {' and '.join(kinds)}, so the bytes of its ids are not known")
    has_bytes = "ByteFallback" in kinds

    def decode(before: list[str], piece: str) -> bytes:
        byte = _BYTE_PIECE.fullmatch(piece) if has_bytes else None
        if byte is not None and int(byte[1], 16) >= 0x80:  # a part of a character
            return bytes.fromhex(byte[1])
        text: str = decoder.decode([*before, piece])
        return text[len("".join(before)) :].encode()

    return lambda piece: decode([_ANCHOR], piece), lambda piece: decode([], piece)


def _is_token_wise(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Strip":
        return bool(part["start"] <= 1 and part["stop"] == 0)
    return part["type"] != "Replace" or "String" in part["pattern"]


def _from_byte_level(piece: str) -> bytes:
    """Decode a token of byte-level BPE. A token with another character, such as an added one, is its own text."""
    try:
        return bytes([_BYTES[char] for char in piece])
    except KeyError:
        return piece.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """The character for each byte: itself if it can be printed, else the next one from 256 on.

    Source: `bytes_to_unicode` of GPT-2.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others: Iterable[int] = (byte for byte in range(256) if byte not in printed)
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()
