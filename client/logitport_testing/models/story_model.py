"""A small language model with words, which is made from a short story at the first use."""

from __future__ import annotations

import re
import string
from collections import Counter
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_PIECES = re.compile(r"\n| ?[A-Za-z]+| ?[0-9]|.", re.DOTALL)
_END = "<|end|>"
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
# Weights of the counts after two ids, after one id, and anywhere.
_WEIGHTS = (0.55, 0.35, 0.1)
_SMOOTHING = 0.02


class StoryModel:
    """A model of the words of a short story: its logits depend on the last two ids. It needs no file and no download.

    Like `ToyModel`, it is the same on every machine. Unlike it, it has a text for each id.

    It never ends a text by itself. Its last id is there for processors that end one, such as `grammar`.

    Attributes:
        vocab_size: width of the logits.
        eos_token_ids: the id that ends a sequence.
        tokenizer_path: a folder with its tokenizer, as `simulate` takes it.
    """

    tokenizer_path = Path(str(files("logitport_testing.models"))) / "story_tokenizer"

    def __init__(self) -> None:
        self._texts = _vocabulary()
        self._ids = {text: token_id for token_id, text in enumerate(self._texts)}
        self.vocab_size = len(self._texts)
        self.eos_token_ids = (self._ids[_END],)
        story = self.encode(_story())
        self._after_two = _followers(story, 2)
        self._after_one = _followers(story, 1)
        counts = Counter(story)
        self._anywhere = _normalized(
            np.array([counts[token_id] + _SMOOTHING for token_id in range(self.vocab_size)], np.float64)
        )

    def __call__(self, token_ids: Sequence[int] | NDArray[np.int32]) -> NDArray[np.float32]:
        """The logits after these ids, float32[vocab_size]."""
        ids = [int(token_id) for token_id in token_ids[-2:]]
        total = _WEIGHTS[2] * self._anywhere
        for weight, followers in ((_WEIGHTS[1], self._after_one.get(tuple(ids[-1:]))), (_WEIGHTS[0], self._seen(ids))):
            if followers is not None:
                total = total + weight * self._distribution(followers)
        # Rounded, so that the last bit of a platform's logarithm does not show in float32.
        return np.round(np.log(_normalized(total)), 4).astype(np.float32)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. A word that the story lacks becomes its letters."""
        ids: list[int] = []
        for piece in _PIECES.findall(text):
            known = [piece] if piece in self._ids else piece
            ids += [self._ids.get(part, self._ids[_UNKNOWN]) for part in known]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return "".join(self.token_text(token_id) for token_id in token_ids)

    def token_text(self, token_id: int) -> str:
        """Return the text of one id."""
        return self._texts[token_id]

    def _seen(self, ids: Sequence[int]) -> Counter[int] | None:
        return self._after_two.get(tuple(ids)) if len(ids) == 2 else None

    def _distribution(self, followers: Counter[int]) -> NDArray[np.float64]:
        counts = np.zeros(self.vocab_size, np.float64)
        counts[[*followers]] = [*followers.values()]
        return _normalized(counts)


def _story() -> str:
    return files("logitport_testing.models").joinpath("story.txt").read_text("utf-8")


@lru_cache(maxsize=1)
def _vocabulary() -> tuple[str, ...]:
    """The texts of all ids: the unknown one, words of the story in their order, single characters, the end."""
    return tuple(dict.fromkeys((_UNKNOWN, *_PIECES.findall(_story()), *_CHARACTERS, _END)))


def _followers(ids: Sequence[int], length: int) -> dict[tuple[int, ...], Counter[int]]:
    found: dict[tuple[int, ...], Counter[int]] = {}
    for end in range(length, len(ids)):
        found.setdefault(tuple(ids[end - length : end]), Counter())[ids[end]] += 1
    return found


def _normalized(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    normalized: NDArray[np.float64] = weights / weights.sum()
    return normalized
