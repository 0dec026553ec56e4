"""`History` against a list."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logitport import History, InvalidArgument

IDS = st.integers(0, 2**31 - 1)


class AgainstAList(RuleBasedStateMachine):
    """After any operations, a history equals a list with the same operations."""

    @initialize(prompt=st.lists(IDS, max_size=80), output=st.lists(IDS, max_size=80), as_array=st.booleans())
    def start(self, prompt: list[int], output: list[int], as_array: bool) -> None:
        self.prompt, self.output = prompt, list(output)
        if as_array:
            self.history = History(np.array(prompt, np.int64), np.array(output, np.int64))
        else:
            self.history = History(prompt, output)

    @rule(token_id=IDS)
    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        self.output.append(token_id)

    @rule(token_ids=st.lists(IDS, max_size=200))
    def extend(self, token_ids: list[int]) -> None:
        self.history.extend(token_ids)
        self.output += token_ids

    @precondition(lambda self: self.output)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        kept = data.draw(st.integers(0, len(self.output)))
        self.history.rewind(len(self.prompt) + kept)
        del self.output[kept:]

    @rule(wrong=st.integers(1, 5))
    def rewind_too_far(self, wrong: int) -> None:
        for length in (len(self.prompt) - wrong, len(self.history) + wrong):
            with pytest.raises(InvalidArgument, match=f"to {length}: the length must lie between"):
                self.history.rewind(length)

    @rule()  # not an invariant: one that runs after every call would hide stale state between two calls
    def crc_is_that_of_all_ids(self) -> None:
        assert self.history.crc() == zlib.crc32(np.array(self.prompt + self.output, "<i4").tobytes())

    @invariant()
    def is_the_list(self) -> None:
        assert self.history.token_ids.tolist() == self.prompt + self.output
        assert self.history.prompt_token_ids.tolist() == self.prompt
        assert self.history.output_token_ids.tolist() == self.output
        assert [self.history.at(position) for position in range(len(self.history))] == self.prompt + self.output
        assert self.history.last_output == (self.output[-1] if self.output else None)
        assert len(self.history) == len(self.prompt) + len(self.output)


TestAgainstAList = AgainstAList.TestCase


def test_crc_after_a_rewind_below_what_was_read_and_new_ids() -> None:
    history = History([1, 2], [3, 4])
    history.crc()
    history.rewind(3)
    history.append(9)
    assert history.crc() == zlib.crc32(np.array([1, 2, 3, 9], "<i4").tobytes())


@pytest.mark.parametrize("ids", [["x"], [2**40], [-(2**31) - 1], [2**70], [1.5], [None], [[1, 2], [3]]])
def test_invalid_ids_are_refused(ids: Any) -> None:
    for prompt, output in ((ids, []), ([], ids)):
        with pytest.raises(InvalidArgument, match="integers of 32 bits"):
            History(prompt, output)


def test_an_array_of_a_wider_dtype() -> None:
    assert History(np.array([5], np.uint64)).token_ids.tolist() == [5]
    with pytest.raises(InvalidArgument, match="integers of 32 bits"):
        History(np.array([2**31], np.int64))
