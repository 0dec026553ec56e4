"""`bad_words`: sequences of ids that are never completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.compiled import core
from logitport.stateful import HistoryState, StatefulEditProcessor
from logitport_builtins.first_denial import FirstDenial
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.processors import EditRequest

_ROOT = 0


class BadWords(StatefulEditProcessor):
    """Denies the last id of a sequence after its earlier ids were written.

    An edit, because the last ids of the history decide.

    Parameters:
        bad_words_ids: list of sequences, each a list of one or more token ids; a sequence of one id is never sampled.
        generated_only: optional, false by default: the ids before the last one may lie in the prompt. With true, all
            ids of a sequence must be generated.

    The parameter is as in transformers' `NoBadWordsLogitsProcessor`, which also has the default rule; vLLM 0.33's
    `bad_words` does not count the prompt. A word of text has several sequences: with and without a space before it.
    """

    builtin_name = "bad_words"
    only_denies = True
    bytes_per_params_byte = 72 if core is None else 32

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.read(params)

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> tuple[list[list[int]], bool]:
        """The sequences, and whether only generated ids count. Raises InvalidArgument."""
        given = Params("bad_words", params, ("bad_words_ids", "generated_only"))
        generated_only = given.boolean("generated_only") if "generated_only" in given else False
        return given.token_sequences("bad_words_ids"), generated_only

    def start(self, request: EditRequest) -> None:
        """Index the sequences. Raises InvalidArgument."""
        sequences, generated_only = self.read(request.params)
        check_in_vocabulary("bad_words", [one for ids in sequences for one in ids], request.vocab_size)
        request.state = BannedSequences(sequences, generated_only)


class PythonBannedSequences(HistoryState):
    """Denies the ids that would complete a sequence.

    Keeps sequences by their ids before the last one, in a trie that is read from the end of a history.
    A look-up reads one id more than the longest prefix that the history ends with has in common with one of the
    sequences, however many sequences there are.
    """

    __slots__ = ("_children", "_first_denial", "_followers", "_generated_only")

    def __init__(self, sequences: Sequence[Sequence[int]], generated_only: bool) -> None:
        """Index sequences of one or more ids. `generated_only`: only ids of the output count."""
        self._generated_only = generated_only
        self._first_denial = FirstDenial()
        self._children: dict[tuple[int, int], int] = {}  # (node, id before it) to node
        followers: dict[int, set[int]] = {}
        for sequence in sequences:
            node = _ROOT
            for token_id in sequence[-2::-1]:
                node = self._children.setdefault((node, token_id), len(self._children) + 1)
            followers.setdefault(node, set()).add(sequence[-1])
        self._followers = {node: np.array(sorted(ids), np.int32) for node, ids in followers.items()}

    def rewind(self, history: History) -> None:
        self._first_denial.rewind(history.length)

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        if _ROOT in self._followers:
            edits.deny(self._followers[_ROOT])
        followers = [*self._followers_after(history, history.length)]
        for ids in followers:
            edits.deny(ids)

        def denying(begin: int) -> Iterator[int]:
            return (length for length in range(begin, history.length) if [*self._followers_after(history, length)])

        if self._first_denial.is_at(history.prompt_length, history.length, bool(followers), denying):
            edits.event("ids_denied")

    def _followers_after(self, history: History, length: int) -> Iterator[NDArray[np.int32]]:
        """The ids that complete a sequence of several ids. Its other ids end the first `length` ids of the history."""
        node, begin = _ROOT, history.prompt_length if self._generated_only else 0
        for position in range(length - 1, begin - 1, -1):
            child = self._children.get((node, history.at(position)))
            if child is None:
                return
            node = child
            if node in self._followers:
                yield self._followers[node]


BannedSequences = PythonBannedSequences if core is None else core.BannedSequences
