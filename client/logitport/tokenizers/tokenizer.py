"""The interface of an operator's tokenizer."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from logitport.errors import InvalidArgument, PayloadError
from logitport.system.installation import how_to_install
from logitport.tokenizers.named_tokenizers import added, configured, shipped_tokenizer, usable
from logitport.tokenizers.token_bytes import UnknownDecoder, read_texts
from logitport.tokenizers.tokenizer_file import TokenizerFile, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    from logitport.tokenizers.token_bytes import Texts

MISSING = (
    "tokenizers need the package tokenizers, which is not installed where the processors run; "
    f"install it {how_to_install('tokenizers')}"
)
_HOW = (
    "the server's option --tokenizer NAME=PATH configures one, the argument `tokenizer` that of `simulate` and "
    "`check`, and the option --tokenizer PATH that of `logitport replay`"
)
_KINDS = {f"{kind}_token" for kind in ("bos", "cls", "eos", "mask", "pad", "sep", "unk")}


class Tokenizer:
    """A tokenizer of the operator, over the library `tokenizers`. Read-only and thread-safe.

    The methods that transformers' tokenizers have, too, take the same arguments in the same order.

    The text of an id is what it adds to a decoded text. Special tokens, such as the one that ends a sequence, and ids
    without a token have none.

    Attributes:
        name: the operator's name for it.
        digest: SHA-256 of the tokens and their ids, in hexadecimal.
        vocab_size: the largest id, plus 1. Logits may be wider.
        eos_token_ids: the ids that end a sequence, from the files next to the tokenizer; may be empty.
        all_special_ids: the ids of special tokens.
        chat_template: the template of its model's prompts, in Jinja; "" without one.
    """

    __slots__ = (
        *("_library", "_special_tokens", "_texts", "_texts_problem"),
        *("all_special_ids", "chat_template", "digest", "eos_token_ids", "name", "vocab_size"),
    )

    def __init__(self, name: str, file: TokenizerFile) -> None:
        """Read a tokenizer; takes two seconds for 150,000 ids.

        Raises:
            PayloadError: it is not a tokenizer, or the package `tokenizers` is not installed.
        """
        library = _library_from(name, file)
        vocabulary = library.get_vocab(with_added_tokens=True)
        self.name = name
        self.chat_template = file.chat_template
        self._library = library
        self._special_tokens: Mapping[str, str] = {}
        self.digest = vocabulary_digest(vocabulary)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        added = library.get_added_tokens_decoder()
        self.all_special_ids = sorted(token_id for token_id, token in added.items() if token.special)
        found = (_eos_ids(vocabulary, self.vocab_size, setting) for setting in file.eos_settings)
        self.eos_token_ids: tuple[int, ...] = next(filter(None, found), ())
        self._texts: tuple[Texts, Texts] | None = None
        self._texts_problem = ""
        try:
            self._texts = read_texts(library)
        except UnknownDecoder as error:
            self._texts_problem = str(error)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text.

        Args:
            text: any text.
            add_special_tokens: whether to add the special tokens of the tokenizer's template, such as one at the start.
        """
        if not isinstance(text, str):
            raise InvalidArgument(f"encode: pass one text, not {type(text).__name__}")
        return list(self._library.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of an id, or of ids in a list, an array or a tensor, [n]. Ids without a token have no text."""
        return str(self._library.decode(_as_list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes of an id's text, which may be a part of a character.

        Args:
            token_id: an id; one without a token has no text.
            first: whether the id is the first of a text: some tokenizers drop the space before it.

        Raises:
            PayloadError: the bytes of this kind of tokenizer are not known.
        """
        return self.texts(first=first).of(token_id)

    def ids_containing(self, part: str | bytes) -> NDArray[np.int32]:
        """The ids with a text that contains this one, int32[n], ascending. Raises the errors of `token_bytes`."""
        data = _as_bytes(part)
        if not data:
            raise InvalidArgument(
                "ids_containing: the text is empty, which all texts contain; pass one character or more"
            )
        return self.texts().containing(data)

    def ids_starting_with(self, prefix: str | bytes) -> NDArray[np.int32]:
        """The ids with a text that starts with this one, int32[n], by text. Raises the errors of `token_bytes`."""
        return self.texts().starting_with(_as_bytes(prefix))

    def texts(self, *, first: bool = False) -> Texts:
        """The texts of all ids. Raises the errors of `token_bytes`."""
        if self._texts is None:
            raise PayloadError(f"tokenizer {self.name!r}: {self._texts_problem}; use encode and decode")
        return self._texts[first]

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """The token of an id, as the vocabulary spells it, or a list of tokens; None for an id without a token."""
        listed = _as_list(ids)
        tokens = [self._library.id_to_token(one) for one in listed]
        return tokens[0] if _is_one(ids) else tokens

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, as the vocabulary spells it, or a list of ids; None for an unknown token."""
        if isinstance(tokens, str):
            return self._library.token_to_id(tokens)
        return [self._library.token_to_id(token) for token in tokens]

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, as the vocabulary spells them."""
        return list(self._library.encode(text, add_special_tokens=False).tokens)

    def get_vocab(self) -> dict[str, int]:
        """A new dict of all tokens, as the vocabulary spells them, and their ids; takes 0.2 s for 150,000."""
        return dict(self._library.get_vocab(with_added_tokens=True))

    def __call__(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """The ids of a text, as `["input_ids"]` and `.input_ids`."""
        ids = self.encode(text, add_special_tokens)
        return Encoding(input_ids=ids, attention_mask=[1] * len(ids))

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"<operator's tokenizer {self.name!r}, {self.vocab_size} ids>"

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a sequence: for a tokenizer that was shipped its own, else the first of `eos_token_ids`."""
        own = self._special_tokens.get("eos_token")
        if own is not None:
            return self._library.token_to_id(own)
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @property
    def eos_token(self) -> str | None:
        """The token of `eos_token_id`."""
        eos = self.eos_token_id
        return None if eos is None else self._library.id_to_token(eos)

    def __getattr__(self, name: str) -> Any:
        """Return a special token of the author's tokenizer, such as `pad_token`, or its id, `pad_token_id`."""
        if not name.startswith("_"):
            kind = name.removesuffix("_id")
            if kind in self._special_tokens:
                token = self._special_tokens[kind]
                return token if kind == name else self._library.token_to_id(token)
            if kind in _KINDS and self._special_tokens:
                return None  # as in transformers
        raise AttributeError(
            f"the operator's tokenizer has no attribute {name!r}; it has encode, decode, token_bytes, ids_containing, "
            "ids_starting_with, convert_ids_to_tokens, convert_tokens_to_ids, tokenize and get_vocab; compute other "
            "values where the class is shipped, and keep them in constants"
        )

    def with_special_tokens(self, tokens: Mapping[str, str]) -> Tokenizer:
        """The same tokenizer, with these special tokens as attributes. It shares all memory."""
        view = object.__new__(type(self))
        for name in Tokenizer.__slots__:
            object.__setattr__(view, name, object.__getattribute__(self, name))
        view._special_tokens = dict(tokens)
        return view

    def __copy__(self) -> Tokenizer:
        return self

    def __deepcopy__(self, memo: object) -> Tokenizer:
        return self

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle as a reference: the other end has the tokenizer."""
        return shipped_tokenizer, (self.digest, self.vocab_size, self.name, dict(self._special_tokens))


class Encoding(dict[str, list[int]]):
    """The ids of a text, in the form of transformers' `BatchEncoding`."""

    @property
    def input_ids(self) -> list[int]:
        """The ids."""
        return self["input_ids"]


def read_tokenizer(name: str, path: Path) -> Tokenizer:
    """Read a tokenizer.json, or a folder with one, as the tokenizer of this name. Raises PayloadError."""
    return Tokenizer(name, TokenizerFile.read(name, path))


def operator_tokenizer(name: str = "") -> Tokenizer:
    """Return the operator's tokenizer of this name, or for "" the only one.

    Raises:
        InvalidArgument: the name is unknown, or it is "" and not exactly one tokenizer is configured.
        LogitportError: the tokenizer cannot be used here, for example because the package `tokenizers` is missing.
    """
    if not name and len(configured) == 1:
        name = next(iter(configured))
    if name in configured or name in added:
        tokenizer: Tokenizer = usable(name)
        return tokenizer
    known = f"configured: {', '.join(map(repr, configured))}" if configured else "none is configured"
    if name:
        raise InvalidArgument(
            f"tokenizer {name!r} is not configured ({known}): start the server with --tokenizer {name}=PATH, or "
            "open the session with the tokenizer_id of a configured one"
        )
    raise InvalidArgument(
        f"no tokenizer is named ({known}): name one as the session's tokenizer_id, or in the call; {_HOW}"
    )


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 of the tokens and their ids, in hexadecimal."""
    items = sorted((token_id, token) for token, token_id in vocabulary.items())
    return hashlib.sha256(orjson.dumps(items)).hexdigest()


def _library_from(name: str, file: TokenizerFile) -> HuggingFaceTokenizer:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise PayloadError(MISSING) from error
    try:
        library = Library.from_str(file.text.decode())
    except Exception as error:  # the library raises plain exceptions
        raise unreadable(name, "tokenizer.json", error) from error
    library.no_truncation()  # both apply to prompts
    library.no_padding()
    return library


def _eos_ids(vocabulary: Mapping[str, int], vocab_size: int, setting: Any) -> tuple[int, ...]:
    if isinstance(setting, dict):
        setting = setting.get("content")
    if isinstance(setting, str):
        setting = vocabulary.get(setting)
    values = setting if isinstance(setting, list) else [setting]
    return tuple(token_id for token_id in values if type(token_id) is int and 0 <= token_id < vocab_size)


def _is_one(token_ids: object) -> bool:
    return np.ndim(token_ids) == 0  # type: ignore[arg-type]


def _as_list(token_ids: Any) -> list[int]:
    """Convert an id, or ids in a list, array or tensor. Raises InvalidArgument."""
    listed = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    listed = [listed] if isinstance(listed, int) else list(listed)
    if not all(isinstance(one, int) and 0 <= one < 1 << 31 for one in listed):
        raise InvalidArgument("token ids must be integers in [0, 2**31): pass one, or a list, array or tensor [n]")
    return listed


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
