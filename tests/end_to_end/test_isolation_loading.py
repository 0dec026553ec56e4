"""Shipped processors that misbehave before their first call or too often, and the recovery of state."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import dill
import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    NotFound,
    PayloadError,
    ProcessorFailed,
    Request,
    StateLost,
)
from tests.cloudpickled import serialize, shifts
from tests.conftest import COMMAND
from tests.toy_processors import AddCallCount, AddOneInPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from logitport import EditRequest, LogitportError, RowEdits
    from tests.conftest import RunningServer

VOCAB = 32
INF = float("inf")
SECONDS = 5.0  # the deadline; well-behaved processors have the same


class HangsInInit(AddOneInPlace):
    def __init__(self) -> None:
        time.sleep(3600)


class ExitsInInit(AddOneInPlace):
    def __init__(self) -> None:
        os._exit(5)


class InterruptsInInit(AddOneInPlace):
    def __init__(self) -> None:
        raise KeyboardInterrupt


class HangsInValidate(AddOneInPlace):
    @classmethod
    def validate_params(cls, params: Any) -> None:
        time.sleep(3600)


class HangsInStart(EditProcessor):
    def start(self, request: EditRequest) -> None:
        time.sleep(3600)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


class SleepsTwice(EditProcessor):
    """Each part of its admission takes less than the deadline, both together take more."""

    def __init__(self) -> None:
        time.sleep(0.6 * SECONDS)

    def start(self, request: EditRequest) -> None:
        time.sleep(0.6 * SECONDS)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


class Reduces:
    """An object whose unpickling calls `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def on_load(function: Any, *arguments: Any) -> str:
    return json.dumps({"callable": dill.dumps(Reduces(function, *arguments)).hex()})


# The second one if a fork, or the load, has used up a part of the time.
TOOK_LONG = (
    rf"(took over {SECONDS:g} s|was not finished after .* s, when the time of the admission) \(--load-timeout-seconds"
)
REFUSED: dict[str, tuple[Any, type[LogitportError], str]] = {
    "hangs in __init__": (HangsInInit, ProcessorFailed, f"loading it {TOOK_LONG}"),
    "leaves in __init__": (ExitsInInit, ProcessorFailed, "ended with status 5"),
    "raises KeyboardInterrupt in __init__": (InterruptsInInit, PayloadError, "KeyboardInterrupt"),
    "hangs in validate_params": (HangsInValidate, ProcessorFailed, f"checking its parameters {TOOK_LONG}"),
    "hangs in start": (HangsInStart, ProcessorFailed, f"its start {TOOK_LONG}"),
    "sleeps in __init__ and in start": (SleepsTwice, ProcessorFailed, r"time of the admission \(--load-timeout-s"),
    "hangs in unpickling": (on_load(time.sleep, 3600), ProcessorFailed, f"loading it {TOOK_LONG}"),
    "leaves in unpickling": (on_load(os._exit, 6), ProcessorFailed, "ended with status 6"),
    "explodes in unpickling": (on_load(bytes, 1 << 40), PayloadError, "MemoryError"),
    "runs a command in unpickling": (on_load(os.system, "echo > /tmp/owned"), PayloadError, "a int is no processor"),
    "is no class": (on_load(int, "7"), PayloadError, "a int is no processor"),
}


@pytest.fixture(scope="module")
def strict(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    with serving(
        *("--enable-custom-logit-processor", "--load-timeout-seconds", str(SECONDS)),
        *("--worker-memory-bytes", str(256 << 20)),
    ) as running:
        yield running


@pytest.fixture
def client(strict: RunningServer) -> Iterator[Client]:
    with Client(strict.target) as connected:
        yield connected


def test_a_class_that_cloudpickle_shipped(client: Client) -> None:
    cls = shifts(CustomLogitProcessor)
    logits, params = torch.randn(2, VOCAB), [{"add": 1.0}, {"add": -1.0}]
    requests = [Request([1], processors=[(serialize(cls), one)]) for one in params]
    assert torch.equal(client.apply(logits, requests).logits, cls()(logits, params))


@pytest.mark.parametrize("name", REFUSED)
def test_a_load_failure_fails_only_its_own_admission(client: Client, name: str) -> None:
    processor, expected, message = REFUSED[name]
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        well_behaved = session.add(Request([1], processors=[(AddOneInPlace, {})], tenant="good"))
        with pytest.raises(expected, match=message) as raised:
            session.add(Request([1], processors=[(processor, {})], tenant="bad"))
        assert type(raised.value) is expected
        logits = torch.zeros(1, VOCAB)
        session.step({well_behaved: [2]}).apply(logits)
        assert torch.equal(logits, torch.ones(1, VOCAB))


class DeniesHistoryOrExits(EditProcessor):
    """Denies the ids of the history. Ends its process at the id `exit_at`."""

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if request.state[-1] == request.params.get("exit_at"):
            os._exit(1)
        edits.deny(request.state)


def test_other_state_of_an_ended_worker_is_rebuilt_or_reported_lost(client: Client) -> None:
    # Registered processors of one owner share a worker.
    registered = {
        processor: client.register(processor).digest
        for processor in (DeniesHistoryOrExits, AddOneInPlace, AddCallCount)
    }
    with client.session(vocab_size=VOCAB, dtype=torch.float32, max_draft_tokens=2) as session:
        rebuilt, leaves, stateless, counts = (
            session.add(Request([1], processors=[(registered[processor], params)], tenant="one"))
            for processor, params in (
                *((DeniesHistoryOrExits, {}), (DeniesHistoryOrExits, {"exit_at": 9})),
                *((AddOneInPlace, {}), (AddCallCount, {})),
            )
        )
        logits = torch.zeros(4, VOCAB)
        session.step({rebuilt: [2], leaves: [2], stateless: [2], counts: [2]}).apply(logits)
        assert logits[3].tolist() == [1.0] * VOCAB
        # Both DeniesHistoryOrExits requests share one call, so both fail.
        result = session.step({rebuilt: [3], leaves: [9]}).apply(torch.zeros(2, VOCAB), check=False)
        assert result.failures.keys() == {rebuilt, leaves}
        session.remove(leaves)
        session.remove(rebuilt)
        again = session.add(Request([1], [2, 3], processors=[(registered[DeniesHistoryOrExits], {})], tenant="one"))
        logits = torch.zeros(3, VOCAB)
        result = session.step({again: [4], stateless: [3], counts: [3]}).apply(logits, check=False)
        assert {handle: type(error) for handle, error in result.failures.items()} == {counts: StateLost}
        assert [at for at in range(VOCAB) if logits[0, at] == -INF] == [1, 2, 3, 4]
        assert logits[1].tolist() == [1.0] * VOCAB


def test_requests_of_another_session_are_rebuilt_from_their_history(client: Client) -> None:
    with (
        client.session(vocab_size=VOCAB, dtype=torch.float32) as session,
        client.session(vocab_size=VOCAB, dtype=torch.float32) as other,
    ):
        kept = session.add(Request([1], processors=[(DeniesHistoryOrExits, {})], tenant="two"))
        leaves = other.add(Request([1], processors=[(DeniesHistoryOrExits, {"exit_at": 9})], tenant="two"))
        denied = [1]
        for token_id in range(10, 20):
            denied.append(token_id)
            logits = torch.zeros(1, VOCAB)
            session.step({kept: [token_id]}).apply(logits)
            assert [at for at in range(VOCAB) if logits[0, at] == -INF] == denied
            if token_id == 14:
                with pytest.raises(Exception, match="ended with status 1"):
                    other.step({leaves: [9]}).apply(torch.zeros(1, VOCAB))


class ExitsInCall(AddOneInPlace):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        if custom_param_list[0].get("leave"):
            os._exit(1)
        return logits + 1


def test_quarantine_and_release(strict: RunningServer, client: Client) -> None:
    kept = client.register(ExitsInCall, name="team/leaves")
    bad = Request([1], processors=[("team/leaves", {"leave": True})])
    good = Request([1], processors=[("team/leaves", {})])
    zeros = torch.zeros(1, VOCAB)
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        admitted = session.add(Request([1], processors=[("team/leaves", {})], on_error="skip"))
        for _ in range(3):
            assert client.apply(zeros, [good]).logits.all()  # a success does not clear the charges
            failure = client.apply(zeros, [bad], check=False).failures[0]
            assert type(failure) is ProcessorFailed
        for request in (good, bad):
            refusal = client.apply(zeros, [request], check=False).failures[0]
            assert isinstance(refusal, ProcessorFailed)
            assert "3 failures or slow calls within 600 s were charged" in str(refusal)
            assert "ended with status 1" in str(refusal)
        result = session.step({admitted: []}).apply(torch.zeros(1, VOCAB))
        assert isinstance(result.skipped[admitted], ProcessorFailed)
        (described,) = [ref for ref in client.processors() if "team/leaves" in ref.names]
        assert "ended with status 1" in described.quarantined
        command = [COMMAND, "processors", "unquarantine", strict.target, "team/leaves"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "lifted the quarantine of team/leaves\n"), done.stderr
        (described,) = [ref for ref in client.processors() if "team/leaves" in ref.names]
        assert described.quarantined == ""
        logits = torch.zeros(1, VOCAB)
        session.step({admitted: []}).apply(logits)
        assert logits.all()
    assert client.apply(zeros, [good]).logits.all()
    (server,) = client.servers()
    assert server.unquarantine(kept.digest).processor.digest == kept.digest
    with pytest.raises(NotFound):
        server.unquarantine("team/nobody")
