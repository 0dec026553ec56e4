"""The processor: adds a bias to the green list of the last id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument
from logitport.processors import EditProcessor
from logitport_builtins.green_list.lists import GreenLists, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest


class GreenList(EditProcessor):
    """The watermark of Kirchenbauer et al. (2023), algorithm 2: adds a bias to ids that the last id determines.

    Parameters:
        greenlist_ratio: optional number between 0 and 1, 0.25 by default: the green part of the vocabulary.
        bias: optional number, 2.0 by default: what is added to the logits of the green ids.
        hashing_key: optional integer of at least 0, 15485863 by default. A secret key of your own hides the watermark.
        vocab_size: optional integer: the number of ids that are divided into green and other ones; by default the width
            of the logits. The detector needs the same number.

    The logits have the same bits as with transformers 5.23's `WatermarkLogitsProcessor` on the CPU with its seeding
    scheme "lefthash". The green lists are permutations that torch 2.13 makes on the CPU; they are computed here. The
    other scheme, "selfhash", reads logits, and does not exist here.

    An edit, because the green list follows from the last id. It names a quarter of the vocabulary, so that the edits of
    a row have half the bytes of its logits in float32 (8 bytes for each green id). A program would send no ids, but
    programs have no random permutations: it could not have the green lists of transformers.
    """

    builtin_name = "green_list"
    takes_long = True

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        read(params)

    def start(self, request: EditRequest) -> None:
        """Read the parameters. Raises InvalidArgument."""
        lists, bias = read(request.params)
        if lists.vocab_size > request.vocab_size:
            raise InvalidArgument(
                f"green_list: vocab_size is {lists.vocab_size}, but the logits have {request.vocab_size} ids: "
                "set it to at most that"
            )
        request.state = lists if lists.vocab_size else lists._replace(vocab_size=request.vocab_size), bias

    def rewind(self, request: EditRequest) -> None:
        """Do nothing: only the last id counts."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """BIAS of the green list, unless the history is empty."""
        lists: GreenLists
        lists, bias = request.state
        if request.history.length:
            green = lists.after(request.history.at(request.history.length - 1))
            edits.bias(np.flatnonzero(green).astype(np.int32), bias)
