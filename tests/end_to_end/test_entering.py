"""Requests that take part in steps before their admission has ended, at a real server and in an embedded session."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    InvalidArgument,
    LogitportError,
    NotFound,
    ProcessorFailed,
    Request,
    RowEdits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.session import Session

VOCAB = 40
SECONDS = 200.0
BAN = ("disallowed_tokens", {"token_ids": [3, 5]})


class DeniesLast(EditProcessor):
    """Denies the last id of the history. Loads in a worker."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([int(request.history.token_ids[-1])])


class AddsOne(CustomLogitProcessor):
    """Reads logits, on the server."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits + 1


class StartsSlowly(EditProcessor):
    """Takes longer than a step waits."""

    def start(self, request: EditRequest) -> None:
        import time

        time.sleep(60)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


def connected(target: str, transport: Any) -> Client:
    return Client.embedded() if transport == "embedded" else Client(target, timeout=SECONDS)


@pytest.fixture(params=["grpc", "local", "embedded"])
def session(request: pytest.FixtureRequest, server: Any) -> Iterator[Session]:
    transport = request.param
    options = {} if transport == "embedded" else {"transport": transport}
    with connected(server.target, transport) as client, client.session(vocab_size=VOCAB, **options) as opened:
        yield opened


@pytest.fixture(params=["grpc", "local"])
def remote(request: pytest.FixtureRequest, server: Any) -> Iterator[Session]:
    with (
        Client(server.target, timeout=SECONDS) as client,
        client.session(vocab_size=VOCAB, transport=request.param) as opened,
    ):
        yield opened


def denied(session: Session, new_ids: dict[Any, list[int]]) -> list[list[int]]:
    """Make a step, and return the ids that are denied in each row."""
    logits = np.zeros((len(new_ids), VOCAB), np.float32)
    session.step(new_ids).apply(logits)
    return [np.flatnonzero(row == -np.inf).tolist() for row in logits]


def test_requests_begin_and_end_in_every_step(session: Session) -> None:
    """Each takes the slot of one that has ended, with the frames of both in front of the step's."""
    draw = np.random.default_rng(4)
    bigrams = ("no_repeat_ngram", {"ngram_size": 2, "window_size": 100})
    histories: dict[Any, list[int]] = {}
    for _ in range(60):
        if len(histories) == 4:
            gone = list(histories)[draw.integers(4)]
            session.remove(gone)
            del histories[gone]
        prompt = draw.integers(8, 12, 5).tolist()
        (entered,) = session.enter([Request(prompt, processors=[bigrams])])
        new_ids = {handle: draw.integers(8, 12, 1).tolist() for handle in histories} | {entered: []}
        histories[entered] = prompt
        for handle, ids in new_ids.items():
            histories[handle] += ids
        wanted = [
            sorted({after for before, after in pairwise(ids) if before == ids[-1]})
            for ids in (histories[handle] for handle in new_ids)
        ]
        assert denied(session, new_ids) == wanted
    assert (session.resyncs, session.reconnects) == (0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        Request([1], processors=[("nobody/nothing", {})]),
        Request([1], processors=[("disallowed_tokens", {"token_ids": [VOCAB]})]),
        Request([1], processors=[BAN], tenant="a" * 100_000),
    ],
    ids=["name", "parameters", "tenant"],
)
def test_a_refusal_is_that_of_add(session: Session, wrong: Request) -> None:
    with pytest.raises(LogitportError) as refused:
        session.add(wrong)
    good, bad, other = session.enter([Request([1], processors=[BAN]), wrong, Request([1], processors=[BAN])])
    for ids in ([], [2]):
        logits = np.zeros((3, VOCAB), np.float32)
        result = session.step({good: ids, bad: ids, other: ids}).apply(logits, check=False)
        (error,) = result.failures.values()
        assert (list(result.failures), type(error), error.code) == ([bad], type(refused.value), refused.value.code)
        assert (error.message, error.processor) == (refused.value.message, refused.value.processor)
        assert [np.flatnonzero(row == -np.inf).tolist() for row in logits] == [[3, 5], [], [3, 5]]
    session.remove(bad)
    (again,) = session.enter([Request([1], processors=[BAN])])
    assert again.slot == bad.slot
    assert denied(session, {good: [2], other: [2], again: []}) == [[3, 5]] * 3


def test_shipped_classes_load_while_the_step_is_sent(remote: Session) -> None:
    handles = remote.enter([Request([7], processors=[chain]) for chain in (BAN, (DeniesLast, {}), (AddsOne, {}))])
    logits = np.zeros((3, VOCAB), np.float32)
    assert remote.step(dict.fromkeys(handles, ())).apply(logits).failures == {}
    assert [np.flatnonzero(row == -np.inf).tolist() for row in logits] == [[3, 5], [7], []]
    assert logits[2].tolist() == [1.0] * VOCAB
    assert [handle.reads_logits for handle in handles] == [False, False, True]
    assert remote.resyncs == 0


@pytest.mark.slow
def test_an_admission_that_takes_too_long(remote: Session) -> None:
    (good,) = remote.enter([Request([7], processors=[BAN])])
    (slow,) = remote.enter([Request([7], processors=[(StartsSlowly, {})])], seconds=0.5)
    result = remote.step({good: [], slow: []}).apply(np.zeros((2, VOCAB), np.float32), check=False)
    assert {handle: type(error) for handle, error in result.failures.items()} == {slow: ProcessorFailed}
    remote.remove(slow)
    assert denied(remote, {good: [2]}) == [[3, 5]]


def test_an_unknown_request_fails_alone_in_a_step(session: Session) -> None:
    """As those whose admission was refused in a frame before the step."""
    good, gone = session.add(Request([1], processors=[BAN])), session.add(Request([1], processors=[BAN]))
    session._channel.exchange(_removal(gone))
    logits = np.zeros((2, VOCAB), np.float32)
    result = session.step({good: [], gone: []}).apply(logits, check=False)
    assert {handle: type(error) for handle, error in result.failures.items()} == {gone: NotFound}
    assert np.flatnonzero(logits[0] == -np.inf).tolist() == [3, 5]


def _removal(handle: Any) -> Any:
    from logitport.session.requests.request_frames import removal

    return removal([handle])


def test_only_one_of_many_frames_without_replies_is_refused(session: Session) -> None:
    handles = []
    for number in range(40):
        chain = BAN if number % 7 else ("disallowed_tokens", {"token_ids": [-1]})
        handles += session.enter([Request([1], processors=[chain])])
    result = session.step(dict.fromkeys(handles, ())).apply(np.zeros((40, VOCAB), np.float32), check=False)
    assert {handles.index(handle) for handle in result.failures} == set(range(0, 40, 7))
    assert {type(error) for error in result.failures.values()} == {InvalidArgument}
