"""Requests of vLLM at a real service: agreement between ranks, and failures of the service."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import CustomLogitProcessor, EditProcessor, LogitportError
from logitport.integrations.common.engine_step import EngineStep
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.vllm.remote_batch import RemoteBatch, RemoteRequest
from logitport.integrations.vllm.requested_chain import ending_id
from logitport.shipping.request import Request
from tests.conftest import free_address
from tests.toy_processors import Double

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer

VOCAB_SIZE, EOS = 64, 1
OPTIONS = {"vocab_size": VOCAB_SIZE, "eos_token_ids": (EOS,), "max_draft_tokens": 4, "reconnect_seconds": 15.0}


class RaisesAfterFirstOutput(CustomLogitProcessor):
    """Fails at its second id."""

    def __call__(self, logits, custom_param_list=None):
        if any(params["__req__"].output_ids for params in custom_param_list):
            raise RuntimeError("on purpose")
        return logits


class Group:
    """One rank's end of a group of two threads, with the interface of vLLM's `GroupCoordinator`."""

    world_size = 2

    def __init__(self, rank_in_group: int, channel: SimpleQueue[Any]) -> None:
        self.rank_in_group = rank_in_group
        self._channel = channel

    def broadcast_object(self, value: Any, src: int) -> Any:
        if self.rank_in_group == src:
            self._channel.put(value)
            return value
        return self._channel.get(timeout=200)

    def broadcast(self, rows: torch.Tensor, src: int) -> torch.Tensor:
        """In place, like vLLM's."""
        shared = self.broadcast_object(rows.clone(), src)
        assert shared.shape == rows.shape
        return rows.copy_(shared)


@pytest.fixture(autouse=True)
def target(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", server.target)


def drive(batch: RemoteBatch, chains: list[Any], steps: int, apart: int = 2) -> list[torch.Tensor]:
    """Run requests with these chains, in every `apart`-th row, for some steps. Returns each step's logits."""
    requests = [RemoteRequest(f"r{place}", 2, ending_id=EOS) for place in range(len(chains))]
    for request, chain in zip(requests, chains, strict=True):
        batch.admit(request, partial(Request, [5, 6], processors=chain, request_id=request.request_id))
    processed = []
    for number in range(steps):
        step = EngineStep()
        for place, request in enumerate(requests):
            step.add(request, [10 + number] if number else [], apart * place)
        batch.begin(step)
        logits = torch.randn(apart * len(chains), VOCAB_SIZE, generator=torch.Generator().manual_seed(number))
        batch.finish(step, logits)
        processed.append(logits)
    for request in requests:
        batch.release(request)
    batch.send_changes()
    return processed


CHAINS: dict[str, list[Any]] = {
    "edits": [[("disallowed_tokens", {"token_ids": [3, 4]})], [("disallowed_tokens", {"token_ids": [9]})]],
    "edits and logits": [[("disallowed_tokens", {"token_ids": [3, 4]})], [(Double, {})]],
    "a processor that fails": [
        [(RaisesAfterFirstOutput, {})],
        [("disallowed_tokens", {"token_ids": [9]})],
        [(Double, {})],
    ],
    "an unknown processor": [[("no/such", {})], [("disallowed_tokens", {"token_ids": [9]})]],
    "only an unknown processor": [[("no/such", {})]],
}


@pytest.mark.slow
@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize("chains", CHAINS)
def test_two_ranks_give_the_result_of_one(chains: str, apart: int, failures: list[Any]) -> None:
    channel: SimpleQueue[Any] = SimpleQueue()
    alone = drive(RemoteBatch(OPTIONS, Ranks()), CHAINS[chains], 4, apart)
    failures.clear()
    leader, follower = (RemoteBatch(OPTIONS, Ranks(Group(rank, channel))) for rank in (0, 1))
    followed: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: followed.extend(drive(follower, CHAINS[chains], 4, apart)))
    thread.start()

    led = drive(leader, CHAINS[chains], 4, apart)
    thread.join(60)

    assert all(map(torch.equal, led, alone))
    assert all(map(torch.equal, followed, alone))
    assert len(followed) == 4
    assert follower._holder.session is None
    assert channel.empty()
    assert len(failures) == (0 if chains.startswith("edits") else 1)


def test_a_failed_request_can_only_sample_its_ending_id(failures: list[Any]) -> None:
    first, second, third = drive(RemoteBatch(OPTIONS, Ranks()), CHAINS["a processor that fails"], 3)

    assert torch.isfinite(first[0]).all()
    for logits in (second, third):
        assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [EOS]
    (failure,) = failures
    assert (failure.request_id, failure.error, failure.output_length) == ("r0", "ProcessorFailed", 1)
    assert "on purpose" in failure.remote_traceback


def test_without_a_server_requests_fail_and_nothing_raises(
    monkeypatch: pytest.MonkeyPatch, failures: list[Any]
) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")

    logits = drive(RemoteBatch(OPTIONS, Ranks()), CHAINS["edits"], 2)

    assert [failure.error for failure in failures] == ["ServerUnavailable"] * 2
    assert logits[1][0].argmax() == EOS


@pytest.mark.slow
@pytest.mark.parametrize("graceful", [True, False])
def test_requests_wait_for_a_service_that_restarts_and_continue(
    graceful: bool,
    serving: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Any],
) -> None:
    """For as long as the operator says."""
    target = free_address()
    monkeypatch.setenv("LOGITPORT_TARGET", target)
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "200")
    batch, request = RemoteBatch(OPTIONS, Ranks()), RemoteRequest("waits", 2, ending_id=EOS)
    bigrams = [("no_repeat_ngram", {"ngram_size": 2, "window_size": 100})]
    with ExitStack() as servers:
        first = servers.enter_context(serving("--listen", target))
        batch.admit(request, lambda: Request([5, 6], processors=bigrams))
        for new_ids in ([], [5]):
            step = EngineStep()
            step.add(request, new_ids, 0)
            batch.finish(step, torch.zeros(1, VOCAB_SIZE))
        if graceful:
            first.stop()
        else:
            first.process.kill()
            first.process.wait()
        later = threading.Timer(3.0, lambda: servers.enter_context(serving("--listen", target)))
        later.start()
        step, logits = EngineStep(), torch.zeros(1, VOCAB_SIZE)
        step.add(request, [], 0)
        batch.begin(step)
        batch.finish(step, logits)
        later.join()

        assert not failures
        assert torch.isinf(logits).nonzero().tolist() == [[0, 6]]  # 5 was followed by 6
        batch.release(request)


class AllowsFive(EditProcessor):
    """Allows one id."""

    def edit(self, request, edits):
        edits.force(5)


@pytest.mark.slow
def test_an_admission_during_a_restart_has_its_time_afterwards(
    serving: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Any],
) -> None:
    """The time in which the service is away does not count as slowness of its processors."""
    monkeypatch.setattr("logitport.integrations.common.admission_time.MAX_SECONDS", 10.0)
    target, options = free_address(), ("--enable-custom-logit-processor",)
    monkeypatch.setenv("LOGITPORT_TARGET", target)
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "200")
    batch, step = RemoteBatch(OPTIONS | {"reconnect_seconds": 200.0}, Ranks()), EngineStep()
    logits = torch.zeros(2, VOCAB_SIZE)
    with ExitStack() as servers:
        first = servers.enter_context(serving("--listen", target, *options))
        for place, chain in enumerate(([(AllowsFive, {})], CHAINS["edits"][0])):
            request = RemoteRequest(f"r{place}", 2, ending_id=EOS)
            batch.admit(request, partial(Request, [5, 6], processors=chain))
            step.add(request, [], place)
        batch.send_changes()
        first.process.kill()
        first.process.wait()
        later = threading.Timer(11.0, lambda: servers.enter_context(serving("--listen", target, *options)))
        later.start()
        batch.begin(step)
        batch.finish(step, logits)
        later.join()

        assert not failures
        assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [5]
        assert torch.isinf(logits[1]).nonzero().flatten().tolist() == [3, 4]
        for request in step.requests:
            batch.release(request)


def admit(batch: RemoteBatch, name: str, request: Request) -> RemoteRequest:
    admitted = RemoteRequest(name, 2, ending_id=EOS)
    batch.admit(admitted, lambda: request)
    return admitted


def test_requests_that_begin_and_end_together_share_a_frame(frames: list[tuple[str, int]], failures: list[Any]) -> None:
    batch, chain = RemoteBatch(OPTIONS, Ranks()), CHAINS["edits"][0]
    first = [admit(batch, f"r{place}", Request([5, 6], processors=chain)) for place in range(5)]
    batch.release(first.pop())
    assert frames == []
    step = EngineStep()
    for place, request in enumerate(first):
        step.add(request, [], place)
    logits = torch.zeros(4, VOCAB_SIZE)
    batch.begin(step)
    batch.finish(step, logits)
    assert frames == [("add", 4)], "the fifth ended before it was sent"
    assert torch.isinf(logits).nonzero().tolist() == [[row, token_id] for row in range(4) for token_id in (3, 4)]

    for request in first:
        batch.release(request)
    admit(batch, "next", Request([5, 6], processors=chain))
    batch.send_changes()
    batch.send_changes()
    assert frames[1:] == [("remove", 4), ("add", 1)], "first the slots become free"
    assert not failures


@pytest.mark.parametrize("wrong", [Request([2**40, 6]), Request([5, 6], processors=[("no/such", {})])])
def test_one_of_several_requests_is_refused(wrong: Request, failures: list[Any]) -> None:
    """By the session, before it is sent, or by the server."""
    batch, step = RemoteBatch(OPTIONS, Ranks()), EngineStep()
    good = Request([5, 6], processors=CHAINS["edits"][0])
    requests = [admit(batch, name, one) for name, one in (("a", good), ("wrong", wrong), ("b", good))]
    for place, request in enumerate(requests):
        step.add(request, [], place)
    logits = torch.zeros(3, VOCAB_SIZE)
    batch.begin(step)
    batch.finish(step, logits)
    assert [request.failed for request in requests] == [False, True, False]
    assert [failure.request_id for failure in failures] == ["wrong"]
    assert torch.isinf(logits[[0, 2]]).nonzero().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4]]


def test_logits_of_another_width_end_requests_not_the_engine(failures: list[Any]) -> None:
    request, batch = RemoteRequest("wide", 2, ending_id=EOS), RemoteBatch(OPTIONS, Ranks())
    batch.admit(request, lambda: Request([5, 6], processors=CHAINS["edits"][0]))
    step = EngineStep()
    step.add(request, [], 0)
    logits = torch.zeros(1, VOCAB_SIZE + 1)

    batch.finish(step, logits)

    assert logits[0].argmax() == EOS
    assert failures[0].error == "InvalidArgument"


@pytest.mark.parametrize("with_a_reader", [False, True])
def test_a_request_with_all_ids_denied_fails(with_a_reader: bool, failures: list[Any]) -> None:
    nothing_left = [("disallowed_tokens", {"token_ids": list(range(VOCAB_SIZE))})]
    chains = [CHAINS["edits"][0], nothing_left, *([[(Double, {})]] if with_a_reader else [])]

    logits = drive(RemoteBatch(OPTIONS, Ranks()), chains, 2)[1]

    assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == [EOS]
    assert torch.isfinite(logits[0]).sum() == VOCAB_SIZE - 2
    assert [(failure.request_id, failure.error) for failure in failures] == [("r1", "InvalidArgument")]


class SleepsInStart(EditProcessor):
    """Is slow for each request."""

    def start(self, request):
        import time

        time.sleep(60)

    def edit(self, request, edits):
        edits.deny([1])


@pytest.mark.slow
def test_a_slow_admission_fails_only_its_request(monkeypatch: pytest.MonkeyPatch, failures: list[Any]) -> None:
    monkeypatch.setattr("logitport.integrations.common.admission_time.MAX_SECONDS", 1.0)
    began = time.monotonic()

    logits = drive(RemoteBatch(OPTIONS, Ranks()), [CHAINS["edits"][0], [(SleepsInStart, {})]], 2)[1]

    assert time.monotonic() - began < 40
    assert torch.isinf(logits[0]).nonzero().flatten().tolist() == [3, 4]
    assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == [EOS]
    assert [(failure.request_id, failure.error) for failure in failures] == [("r1", "ProcessorFailed")]


def test_the_ending_id_ends_the_request() -> None:
    def ending(given: list[int], *stop: int, eos: int | None = None) -> int:
        return ending_id(SimpleNamespace(extra_args=None, stop_token_ids=list(stop), eos_token_id=eos), given)

    assert [ending([3], 5, eos=2), ending([3], 5), ending([3]), ending([])] == [2, 5, 3, 0]


def test_a_request_that_cannot_be_made_fails(failures: list[Any]) -> None:
    request, batch = RemoteRequest("bad", 2, ending_id=EOS), RemoteBatch(OPTIONS, Ranks())

    def raises() -> Request:
        raise LogitportError("not so")

    batch.admit(request, raises)
    batch.send_changes()

    assert [(failure.request_id, failure.message) for failure in failures] == [("bad", "not so")]
