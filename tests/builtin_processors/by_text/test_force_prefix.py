"""The cost of reading a prefix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from logitport import InvalidArgument
from logitport.tokenizers.token_bytes import Texts
from logitport_builtins.by_text.force_prefix import Prefix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Counted(Texts):
    searches = 0

    def starting_with(self, prefix: bytes) -> NDArray[np.int32]:
        self.searches += 1
        return super().starting_with(prefix)


def test_a_run_of_spaces_is_not_searched_at_each_length() -> None:
    """Vocabularies have tokens of many spaces, so that each place has as many ends."""
    texts = Counted([b" " * length for length in range(1, 81)])
    tokenizer = SimpleNamespace(name="spaces", texts=lambda first=False: texts)
    prefix = Prefix(cast("Any", tokenizer), b" " * 512)
    assert texts.searches < 4 * 512
    assert prefix.next_ids(0).tolist() == [*range(80)]


@pytest.mark.parametrize("unwritable", [4095, 2000])
def test_a_text_that_cannot_be_written_is_refused_early(unwritable: int) -> None:
    """No place before the one that the tokenizer cannot write can be the end of a token: none is searched for."""
    texts = Counted([b" " * length for length in range(1, 81)])
    tokenizer = SimpleNamespace(name="spaces", texts=lambda first=False: texts)
    with pytest.raises(InvalidArgument, match="has no ids for the text"):
        Prefix(cast("Any", tokenizer), b" " * unwritable + b"x" + b" " * (4095 - unwritable))
    assert texts.searches < 3 * 4096
