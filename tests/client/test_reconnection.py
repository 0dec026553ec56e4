"""A session whose server goes away in the middle of a step, against servers that are scripted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import NeedSync, Request, ServerUnavailable, Session, SessionClosed
from logitport.errors import to_proto
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB = 4
READ_ROW_0 = {"edits": processing_pb2.StepEdits(logits_rows=bytes(4))}


class Servers:
    """One after the other; each is reached once."""

    def __init__(self, script: Any, count: int) -> None:
        self.scripts = [script() for _ in range(count)]
        self._left: Iterator[Any] = iter(self.scripts)
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
        self.session = Session(lambda _: next(self._left), opening, timeout=5, lane="grpc", with_torch=False)

    def answer_steps(self, answer: dict[str, Any]) -> None:
        for script in self.scripts:
            script.answer = lambda frame, honest=script.honest: answer if frame.HasField("step") else honest(frame)

    def kinds(self, which: int) -> list[str | None]:
        return [frame.WhichOneof("frame") for frame in self.scripts[which].frames]


@pytest.fixture
def servers(opened: Any) -> Callable[[int], Servers]:
    return lambda count: Servers(type(opened()[1]), count)


def go_away(script: Any) -> None:
    script.refuse_to_send = ServerUnavailable("gone")


def zeros() -> np.ndarray[Any, Any]:
    return np.zeros((1, VOCAB), np.float32)


def test_logits_are_not_sent_to_a_server_that_knows_nothing_of_their_step(servers: Any) -> None:
    two = servers(2)
    two.answer_steps(READ_ROW_0)
    pending = two.session.step({two.session.add(Request([1])): [2]})
    pending.edits()
    go_away(two.scripts[0])
    two.session.add(Request())
    pending.apply(zeros())
    assert two.kinds(0) == ["open", "add", "step"]
    assert two.kinds(1) == ["open", "add", "add", "step", "logits"]
    assert list(two.scripts[1].frames[1].add.requests[0].request.output_token_ids) == [2]


def test_a_step_is_finished_on_the_connection_that_was_made_since(servers: Any) -> None:
    two = servers(2)
    handle = two.session.add(Request([1]))
    go_away(two.scripts[0])
    pending = two.session.step({handle: [2]})
    two.session.add(Request())
    pending.apply(zeros())
    assert two.kinds(1) == ["open", "add", "add", "step"]


def test_a_server_that_goes_away_while_histories_are_sent_again(servers: Any) -> None:
    two = servers(2)
    handle = two.session.add(Request([1]))

    def wants_the_history(frame: Any) -> dict[str, Any]:
        go_away(two.scripts[0])
        differs = common_pb2.Failure(slot=handle.slot, error=to_proto(NeedSync("differs")))
        return {"edits": processing_pb2.StepEdits(failures=[differs])}

    two.scripts[0].answer = wants_the_history
    result = two.session.step({handle: [2]}).apply(zeros())
    assert result.failures == {}
    assert two.kinds(1)[-1] == "step"


def test_a_closed_session_does_not_come_back(servers: Any) -> None:
    two = servers(2)
    handle = two.session.add(Request([1]))
    go_away(two.scripts[0])
    pending = two.session.step({handle: [2]})
    two.session.close()
    with pytest.raises(SessionClosed):
        pending.apply(zeros())
    assert two.scripts[1].frames == []
