"""Detects the watermark in a text's token ids."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from logitport.core.history import listed_ids
from logitport.errors import InvalidArgument
from logitport_builtins.green_list.lists import read

if TYPE_CHECKING:
    from logitport.core.history import TokenIds


class GreenListDetection(NamedTuple):
    """The result of a detection.

    Attributes:
        num_tokens_scored: number of ids that were compared with a green list.
        num_green_tokens: how many of them are in it.
        z_score: by how many standard deviations that is more than in a text without the watermark.
        p_value: probability of this z-score or a higher one in a text without the watermark.
    """

    num_tokens_scored: int
    num_green_tokens: int
    z_score: float
    p_value: float

    @property
    def green_fraction(self) -> float:
        """The green part of the ids."""
        return self.num_green_tokens / self.num_tokens_scored


class GreenListDetector:
    """Counts the green ids of texts that the processor `green_list` may have marked.

    The scores equal those by transformers 5.23's `WatermarkDetector`, with the seeding scheme "lefthash".
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        greenlist_ratio: float = 0.25,
        hashing_key: int = 15_485_863,
        ignore_repeated_ngrams: bool = False,
    ) -> None:
        """Prepare for texts of one watermark.

        Args:
            vocab_size: the parameter of the requests, or the width of their logits.
            greenlist_ratio: the parameter of the requests.
            hashing_key: the parameter of the requests.
            ignore_repeated_ngrams: count each pair of successive ids once.

        Raises:
            InvalidArgument: a number cannot be used.
        """
        params = {"vocab_size": vocab_size, "greenlist_ratio": greenlist_ratio, "hashing_key": hashing_key}
        self._lists, _ = read(params)
        self._once = ignore_repeated_ngrams

    def detect(self, token_ids: TokenIds) -> GreenListDetection:
        """Score a text. The first id is not scored; leave out the prompt, which has no watermark.

        Raises:
            InvalidArgument: the text has fewer than two ids.
            InvalidArgument: a tensor or array has another dtype or shape than integers, [n].
        """
        ids = [int(token_id) for token_id in listed_ids(token_ids)]
        if len(ids) < 2:
            raise InvalidArgument(f"{len(ids)} token ids: a text of at least 2 can be scored")
        pairs = Counter(pairwise(ids))
        if self._once:
            pairs = Counter(dict.fromkeys(pairs, 1))
        scored, green = sum(pairs.values()), 0
        for (before, token_id), count in sorted(pairs.items()):
            if 0 <= token_id < self._lists.vocab_size and self._lists.after(before)[token_id]:
                green += count
        ratio = self._lists.ratio
        z_score = (green - ratio * scored) / math.sqrt(scored * ratio * (1 - ratio))
        return GreenListDetection(scored, green, z_score, 0.5 * math.erfc(z_score / math.sqrt(2)))
