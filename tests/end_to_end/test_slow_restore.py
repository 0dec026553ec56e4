"""A server that is lost: only requests whose class loads slowly on the next one wait or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, EditProcessor, ProcessorFailed, Request
from tests.conftest import free_address
from tests.end_to_end.test_background_admission import NO_WORKERS, Blocking
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logitport import EditRequest, RowEdits

VOCAB = 32


class CountsOutput(EditProcessor):
    """Denies the id that is the number of output ids, which it counts itself."""

    def start(self, request: EditRequest) -> None:
        request.state = len(request.history.output_token_ids)

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([request.state])


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[Blocking]:
    requests = Blocking(tmp_path)
    yield requests
    for name in "abc":
        requests.release(name)


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_slow_classes_do_not_hold_up_the_others(
    start_server: Callable[..., Any],
    blocking: Blocking,
    transport: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For `CountsOutput` on a busy machine.
    monkeypatch.setattr("logitport.session.requests.admissions.QUIET_SECONDS", 2.0)
    target = free_address()
    first = start_server("--listen", target, *NO_WORKERS)
    with (
        Client(target, timeout=SECONDS) as client,
        client.session(vocab_size=VOCAB, transport=transport) as session,
    ):
        built_in = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [20]})]))
        counting = session.add(Request([1], processors=[(CountsOutput, {})], tenant="counts"))
        for name in "abc":
            blocking.release(name)
        slow = [session.add(blocking.request(name)) for name in "abc"]
        handles = [built_in, counting, *slow]
        session.step({handle: [5] for handle in handles}).apply(np.zeros((5, VOCAB), np.float32))
        for name in "abc":
            (tmp_path / name).unlink()
        first.process.kill()
        first.process.wait()
        start_server("--listen", target, *NO_WORKERS)
        # Returns although the slow classes are not released before the end of the test.
        logits = np.zeros((5, VOCAB), np.float32)
        result = session.step({handle: [5] for handle in handles}).apply(logits, check=False)
        assert {handle: type(error) for handle, error in result.failures.items()} == dict.fromkeys(
            slow, ProcessorFailed
        )
        session.remove(*slow)
        logits = np.zeros((2, VOCAB), np.float32)
        assert session.step({built_in: [5], counting: [5]}).apply(logits).failures == {}
        assert [np.flatnonzero(row == -np.inf).tolist() for row in logits] == [[20], [3]]
        assert session.resyncs == 0
