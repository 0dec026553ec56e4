"""The base class of hooks that hold a session per sequence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logitport import InvalidArgument, ServerUnavailable
from logitport.integrations.common.history_batch import SequenceHook


class Sequence:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sequences() -> dict[str, Sequence]:
    return {"a": Sequence(), "b": Sequence()}


@pytest.fixture
def hook(sequences: dict[str, Sequence]) -> SequenceHook:
    client: Any = SimpleNamespace(timeout=15.0)
    return SequenceHook(client, sequences)


def test_leaving_the_context_ends_all_sequences(hook: SequenceHook, sequences: dict[str, Sequence]) -> None:
    opened = list(sequences.values())
    with hook as entered:
        assert entered is hook
    assert not sequences
    assert all(sequence.closed for sequence in opened)


def test_a_failure_ends_its_sequence_and_opens_the_breaker_if_the_service_failed(
    hook: SequenceHook, sequences: dict[str, Sequence]
) -> None:
    hook._record_failure("a", InvalidArgument("wrong"))
    assert list(sequences) == ["b"]
    assert hook._breaker.attempt(lambda: 1) == 1
    hook._record_failure("b", ServerUnavailable("no answer", timed_out=True))
    with pytest.raises(ServerUnavailable):
        hook._breaker.attempt(lambda: pytest.fail("it was tried"))


def test_a_served_step_is_counted_and_closes_the_breaker(hook: SequenceHook) -> None:
    hook._record_failure("a", ServerUnavailable("no answer", timed_out=True))
    hook._record_success(0.0)
    assert hook._breaker.attempt(lambda: 1) == 1
    assert hook.steps == 1
    assert hook.seconds > 0
