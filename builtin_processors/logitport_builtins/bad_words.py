"""`bad_words`: sequences of ids that are never completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.compiled import core
from logitport.stateful import HistoryState, StatefulEditProcessor
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        begin = request.history.prompt_length if generated_only else 0
        request.state = BannedSequences(sequences, begin)


class PythonBannedSequences(HistoryState):
    """Denies the ids that would complete a sequence.

    Keeps sequences by their ids before the last one, in a trie that is read from the end of a history.
    A look-up reads one id more than the longest prefix that the history ends with has in common with one of the
    sequences, however many sequences there are.
    """

    __slots__ = ("_begin", "_children", "_followers")

    def __init__(self, sequences: Sequence[Sequence[int]], begin: int) -> None:
        """Index sequences of one or more ids. Only ids of the history from position `begin` on count."""
        self._begin = begin
        self._children: dict[tuple[int, int], int] = {}  # (node, id before it) to node
        followers: dict[int, set[int]] = {}
        for sequence in sequences:
            node = _ROOT
            for token_id in sequence[-2::-1]:
                node = self._children.setdefault((node, token_id), len(self._children) + 1)
            followers.setdefault(node, set()).add(sequence[-1])
        self._followers = {node: np.array(sorted(ids), np.int32) for node, ids in followers.items()}

    def edit(self, history: History, vocab_size: int, edits: RowEdits) -> None:  # noqa: ARG002
        for ids in self.followers(history):
            edits.deny(ids)

    def followers(self, history: History) -> list[NDArray[np.int32]]:
        """The ids that complete a sequence. Its other ids end the history."""
        found = []
        node: int | None = _ROOT
        position = history.length
        while node is not None:
            if node in self._followers:
                found.append(self._followers[node])
            position -= 1
            node = self._children.get((node, history.at(position))) if position >= self._begin else None
        return found


BannedSequences = PythonBannedSequences if core is None else core.BannedSequences
