"""A row in which edits deny every id is reported by every way to apply processors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

from logitport import ProcessorWarning, Request

if TYPE_CHECKING:
    from logitport import Client

VOCAB = 8
FEW = Request([1], processors=[("disallowed_tokens", {"token_ids": [1]})])
ALL = Request([1], processors=[("disallowed_tokens", {"token_ids": list(range(VOCAB))})])
MESSAGE = r"all ids of rows \[1\] are denied"


def zeros() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.zeros((2, VOCAB), np.float32)


def test_in_a_session(client: Client) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handles = [session.add(request) for request in (FEW, ALL)]
        with pytest.warns(ProcessorWarning, match=MESSAGE) as warned:
            session.step(dict.fromkeys(handles, ())).apply(zeros())
        assert warned[0].filename == __file__
        with pytest.warns(ProcessorWarning, match=MESSAGE):
            session.step(dict.fromkeys(handles, ())).edits()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = session.step(dict.fromkeys(handles, ())).apply(zeros(), check=False)
    assert result.all_denied_rows == (1,)


def test_in_one_call(client: Client) -> None:
    with pytest.warns(ProcessorWarning, match=MESSAGE) as warned:
        client.apply(zeros(), [FEW, ALL])
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert client.apply(zeros(), [FEW, ALL], check=False).all_denied_rows == (1,)
