"""A buffer used only by one author's requests is lent to their worker, and not reused for other authors."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, InvalidArgument, Request
from tests.toy_processors import AddOneInPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport import Client
    from logitport.session import Session

VOCAB = 1024
ENOUGH_STEPS = 12


class Overwrites(CustomLogitProcessor):
    """Starts a thread on request that keeps overwriting its logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        def write() -> None:
            while True:
                logits.zero_()
                time.sleep(0.0005)

        if custom_param_list[0].get("bad"):
            threading.Thread(target=write, daemon=True).start()
        return logits.add_(1)


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport="local") as opened:
        yield opened


def step(session: Session, *handles: Any, buffer: Any = None) -> torch.Tensor:
    logits: torch.Tensor = session.logits_buffer(len(handles)) if buffer is None else buffer
    logits.zero_()
    session.step(dict.fromkeys(handles, ())).apply(logits)
    return logits


def test_results_are_the_same_before_and_after(session: Session) -> None:
    handles = [session.add(Request([1], processors=[(AddOneInPlace, {})], tenant="a")) for _ in range(3)]
    buffers = {step(session, *handles).data_ptr() for _ in range(ENOUGH_STEPS) if step(session, *handles).all()}
    assert len(buffers) == 1
    assert torch.equal(step(session, *handles), torch.ones(3, VOCAB))
    assert torch.equal(step(session, *handles[:2]), torch.ones(2, VOCAB))
    handles.append(session.add(Request([1], processors=[(AddOneInPlace, {})], tenant="a")))  # of the same author
    assert torch.equal(step(session, *handles), torch.ones(4, VOCAB))


def test_a_lent_buffer_is_retired_when_another_authors_request_is_added(session: Session) -> None:
    own = session.add(Request([1], processors=[(Overwrites, {"bad": True})], tenant="a"))
    for _ in range(ENOUGH_STEPS):
        buffer = step(session, own)
    pending = session.step({own: ()})
    other_author = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
    with pytest.raises(InvalidArgument, match="call logits_buffer again"):
        pending.apply(buffer)
    with pytest.raises(InvalidArgument, match="call logits_buffer again"):
        step(session, other_author, buffer=buffer)
    with pytest.raises(InvalidArgument, match="call logits_buffer again"):
        step(session, other_author, buffer=buffer[:1, :])
    for _ in range(ENOUGH_STEPS):
        logits = session.logits_buffer(2)
        assert logits.data_ptr() != buffer.data_ptr()
        logits.fill_(7)
        session.step({own: (), other_author: ()}).apply(logits)
        time.sleep(0.002)
        assert logits[1, 3] == float("-inf")
        assert int((logits[1] == 7).sum()) == VOCAB - 1


def test_a_buffer_that_held_another_authors_rows_is_not_lent(session: Session) -> None:
    """A buffer that held another author's logits is not lent, even after that request is removed."""
    other_author = session.add(Request([1], processors=[(AddOneInPlace, {})], tenant="b"))
    own = session.add(Request([1], processors=[(Overwrites, {})], tenant="a"))
    step(session, own, other_author)
    session.remove(other_author)
    for _ in range(ENOUGH_STEPS):
        buffer = step(session, own)
    other = session.add(Request([1], processors=[(AddOneInPlace, {})], tenant="b"))
    assert step(session, own, other).data_ptr() == buffer.data_ptr()


def test_a_replaced_buffer_is_valid_until_a_request_is_added(session: Session) -> None:
    own = session.add(Request([1], processors=[(Overwrites, {"bad": True})], tenant="replaced"))
    for _ in range(ENOUGH_STEPS):
        lent = step(session, own)
    assert session.logits_buffer(2).data_ptr() != lent.data_ptr()
    session.step({own: ()}).apply(lent)
    other_author = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
    with pytest.raises(InvalidArgument, match="call logits_buffer again"):
        step(session, other_author, buffer=lent)
    logits = step(session, other_author)
    assert logits[0, 3] == -torch.inf
    assert torch.count_nonzero(logits) == 1
