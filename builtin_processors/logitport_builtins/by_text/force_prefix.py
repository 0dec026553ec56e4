"""`force_prefix`: the output begins with a text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument, ProcessorFailed
from logitport_builtins.by_text.base import TextProcessor
from logitport_builtins.by_text.reading import read_tokenizer_name, tokenizer_of
from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest
    from logitport.tokenizers import Tokenizer
    from logitport.tokenizers.token_bytes import Texts

_MAX_BYTES = 4 << 10
_MAX_PREFIXES = 64
_DIVERGED = -1


class ForcePrefix(TextProcessor):
    """Allows only ids that keep the output a prefix of the text, or continue it, however the text is split.

    The text is what the tokenizer decodes from the output's ids without special tokens. The last id may go beyond the
    prefix. After that, nothing is changed. The prompt does not count.

    Parameters:
        force_prefix: a text of at most 4 KiB in UTF-8.
        tokenizer: optional, the operator's name of the tokenizer; by default the session's, or the only one.

    After a draft token that differs, rows are unchanged, because they are never sampled from. An accepted id that
    differs fails the request.
    """

    builtin_name = "force_prefix"

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> bytes:
        """Return the prefix. Raises InvalidArgument, PayloadError."""
        given = Params(cls.builtin_name, params, (cls.builtin_name, "tokenizer"))
        (text,) = given.checked_texts(cls.builtin_name, [given.string(cls.builtin_name)], _MAX_BYTES)
        read_tokenizer_name(given)
        return text.encode()

    def start(self, request: EditRequest) -> None:
        """Read the output. Raises InvalidArgument, PayloadError."""
        if request.state is None:
            prefix = prefix_for(tokenizer_of(self.builtin_name, request), self.read(request.params))
        else:  # of an earlier block: nothing is built within a step
            prefix = request.state.prefix
        request.state = _PrefixState(prefix, request.history.output_token_ids.tolist())

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """ALLOW of the ids that agree with the rest of the prefix. Raises ProcessorFailed."""
        state: _PrefixState = request.state
        done = state.done[-1]
        if done == _DIVERGED:
            _check_draft(request, state)
        elif done < state.prefix.length:
            edits.allow(state.prefix.next_ids(done))


class Prefix:
    """A text, and the ids that may follow at each of its positions.

    Raises:
        InvalidArgument: the tokenizer cannot write the text.
    """

    def __init__(self, tokenizer: Tokenizer, text: bytes) -> None:
        self.length = len(text)
        self._text = text
        self.first, self.later = tokenizer.texts(first=True), tokenizer.texts()
        self._ends: list[int] = []  # positions within the text; ids can write the rest after them; the last first
        for position in reversed(range(1, self.length)):
            if any(map(len, self._find(position, self.later))):  # the first ones are enough
                self._ends.append(position)
        if not len(self.next_ids(0)):
            raise InvalidArgument(
                f"force_prefix: the tokenizer {tokenizer.name!r} has no ids for the text: give a text in its alphabet"
            )

    @functools.lru_cache(_MAX_PREFIXES)  # noqa: B019 - ends with `prefix_for`, which keeps as many
    def next_ids(self, done: int) -> NDArray[np.int32]:
        """The ids that agree with the text after so many of its bytes, int32[n]."""
        return np.concatenate([*self._find(done, self.later if done else self.first)])

    def after(self, done: int, text: bytes) -> int:
        """How many bytes are done after this text; `_DIVERGED` if it differs."""
        rest = self._text[done : done + len(text)]
        return done + len(rest) if text.startswith(rest) else _DIVERGED

    def _find(self, position: int, texts: Texts) -> Iterator[NDArray[np.int32]]:
        """Yield the ids that go beyond the text or end with it, and then those that end at each of its positions."""
        yield texts.starting_with(self._text[position:])
        for end in reversed(self._ends):
            if end <= position:
                continue
            starting = texts.starting_with(self._text[position:end])
            if not len(starting):
                break
            # In the order of their bytes: those that are exactly this text come first.
            longer = next((at for at, one in enumerate(starting) if len(texts.of(int(one))) > end - position), None)
            yield starting[:longer]


@functools.lru_cache(_MAX_PREFIXES)
def prefix_for(tokenizer: Tokenizer, text: bytes) -> Prefix:
    """Return the prefix; requests with the same one share it. Raises InvalidArgument."""
    return Prefix(tokenizer, text)


class _PrefixState:
    """How many bytes of the prefix are done, before the output and after each of its ids."""

    __slots__ = ("done", "prefix")

    def __init__(self, prefix: Prefix, output: Sequence[int]) -> None:
        self.prefix = prefix
        self.done = [0]
        for token_id in output:
            self.advance(token_id)

    def advance(self, token_id: int) -> None:
        done = self.done[-1]
        if 0 <= done < self.prefix.length:
            text = (self.prefix.later if done else self.prefix.first).of(token_id)
            done = self.prefix.after(done, text) if text else _DIVERGED
        self.done.append(done)

    def rewind(self, length: int) -> None:
        del self.done[length + 1 :]


def _check_draft(request: EditRequest, state: _PrefixState) -> None:
    """Raise ProcessorFailed if the id that differs is not a draft token."""
    history = request.history
    at = history.prompt_length + state.done.index(_DIVERGED) - 1
    if at < history.length - history.draft_tokens:
        raise ProcessorFailed(
            f"force_prefix: the output's id at index {at - history.prompt_length} is {history.at(at)}, which differs "
            "from the prefix; check that the engine applies the edits, and that no other processor forces the id"
        )
