"""What a batch states of a request's first step."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import InvalidArgument, ProcessorFailed, Request
from logitport.integrations.common.engine_batch import EngineBatch
from logitport.integrations.common.engine_step import EngineStep, TrackedRequest
from logitport.integrations.common.ranks import Ranks
from tests.client.scripted import Script, Servers, edits_reply, failure

if TYPE_CHECKING:
    from logitport.errors import LogitportError


class Batch(EngineBatch):
    """Keeps the requests that were admitted, and raises an error for each, if there is one."""

    def __init__(self, script: Script, refusal: LogitportError | None = None) -> None:
        session = Servers([script]).session
        breaker = SimpleNamespace(record_success=lambda: None)
        holder: Any = SimpleNamespace(
            session=session, breaker=breaker, ensure_open=lambda options: session, together=nullcontext
        )
        super().__init__(holder, dict, Ranks(), "an engine")
        self.refusal = refusal
        self.admitted: list[TrackedRequest] = []

    def on_admitted(self, request: Any) -> None:
        self.admitted.append(request)
        if self.refusal is not None:
            raise self.refusal

    def run(self, *requests: TrackedRequest) -> set[TrackedRequest]:
        """Run a first step of these requests. Returns those that failed."""
        step = EngineStep()
        for row, request in enumerate(requests):
            self.admit(request, lambda: Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
            step.add(request, [], row)
        self.begin(step)
        return set(self.finish(step, torch.zeros(len(requests), 4)))


def failing_first() -> Script:
    """A server on which the processors of the first request fail."""
    script = Script()

    def answer(frame: Any) -> dict[str, Any]:
        if frame.HasField("step"):
            return edits_reply(failures=[failure(0, ProcessorFailed("at the first row"))])
        return dict(Script.correct(frame))

    script.answer = answer
    return script


def test_a_request_that_fails_in_its_first_step_was_admitted() -> None:
    batch, failing, other = Batch(failing_first()), TrackedRequest(), TrackedRequest()
    assert batch.run(failing, other) == {failing}
    assert set(batch.admitted) == {failing, other}
    assert failing.handle is not None
    assert (failing.handle.report.error, failing.handle.report.failed_at) == ("ProcessorFailed", 0)


@pytest.mark.parametrize("error", [InvalidArgument("its state would be lost"), RuntimeError("a defect")])
def test_an_error_of_a_hook_at_an_admission_fails_this_request_only(error: Any) -> None:
    batch, refused = Batch(Script(), error), TrackedRequest()
    assert batch.run(refused) == {refused}
    assert str(error) in str(refused.error)
    batch.refusal = None
    assert batch.run(TrackedRequest()) == set()
