"""Batch and single-request processors of vLLM in the workers of a real server, without vLLM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, PayloadError, ProcessorFailed, Request
from logitport.dialects import InDialect
from tests.end_to_end.churn import VOCAB, Chain, Churn, SingleRequest, rows
from tests.engine_stubs import importable_stubs
from tests.toy_processors import Double

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

INF = float("inf")
FAILING_ID = 13


@pytest.fixture(scope="module")
def vllm_module() -> Iterator[Any]:
    """The module of processors, imported while vLLM or its stand-in can be imported."""
    with importable_stubs():
        yield importlib.import_module("tests.end_to_end.vllm_processors")


@pytest.fixture(scope="module")
def names(server: RunningServer, vllm_module: Any) -> dict[str, str]:
    """Registered processors: one by digest, one by name."""
    with Client(server.target) as client:
        client.register(InDialect(vllm_module.ban_last, "vllm"), name="vllm/ban-last")
        return {"digest": client.register(vllm_module.AddsLength).digest, "vllm/ban-last": "vllm/ban-last"}


class Reference(SingleRequest):
    """Reference model of one request. The kind of each chain entry selects the computation."""

    def fails(self) -> bool:
        return FAILING_ID in self.output and any(kind == "RaisesSeen" and params for kind, params in self.chain)

    def process(self, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        before = row.copy()
        for kind, params in self.chain:
            if kind in ("AddsLength", "digest"):
                row += np.float32(len(self.output) * params.get("by", 1))
            elif kind == "Bans":
                row[params.get("ban", [])] = -INF
            elif kind == "RaisesSeen":
                if FAILING_ID in self.output and "seen" in params:
                    return before
                for token_id in self.output if "seen" in params else ():
                    row[token_id] += np.float32(params["seen"])
            elif kind in ("ban_last", "vllm/ban-last"):
                row[self.output[-1:]] = -INF
            elif kind == "raise_prompt":
                row[list(set(self.prompt))] += 2
            elif kind == "Double":
                row *= 2
            else:
                row[params["token_ids"]] = -INF
        return row


CHAINS: list[Chain] = [
    [("AddsLength", {"by": 2})],
    [("AddsLength", {})],
    [("digest", {"by": 3})],
    [("Bans", {"ban": [1, 2]})],
    [("Bans", {})],
    [("ban_last", {})],
    [("vllm/ban-last", {}), ("raise_prompt", {})],
    [("RaisesSeen", {"seen": 0.5})],
    [("RaisesSeen", {})],
    [("disallowed_tokens", {"token_ids": [5]}), ("AddsLength", {"by": 1}), ("Bans", {"ban": [3]}), ("ban_last", {})],
    [("Double", {}), ("RaisesSeen", {"seen": 2.0}), ("raise_prompt", {}), ("AddsLength", {"by": 0.25})],
]


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_64_steps_with_churn(server: RunningServer, vllm_module: Any, names: dict[str, str], transport: Any) -> None:
    """Sampling is greedy: the ids follow from the rows, so that a wrong row changes all later steps."""
    random = np.random.default_rng(8)
    processors = {**names, "Double": Double, "disallowed_tokens": "disallowed_tokens"}
    failed = 0
    with (
        Client(server.target) as client,
        client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport, max_requests=8) as session,
    ):
        churn = Churn(
            session, random, CHAINS, Reference, lambda kind: processors.get(kind) or getattr(vllm_module, kind), "skip"
        )
        for _ in range(64):
            part = churn.next_step()
            logits = torch.from_numpy(random.integers(-9, 9, (len(part), VOCAB)).astype(np.float32))
            before = logits.numpy().copy()
            expected = [churn.live[handle].process(row) for handle, row in zip(part, before, strict=True)]
            result = session.step({handle: churn.new[handle] for handle in part}).apply(logits)
            np.testing.assert_array_equal(logits.numpy(), np.array(expected).reshape(logits.shape))
            assert result.failures == {}
            tripped = {handle for handle in part if churn.live[handle].fails()}
            assert set(result.skipped) == tripped
            failed += len(tripped)
            for row, handle in enumerate(part):
                churn.sampled(handle, [int(logits[row].argmax())])
        assert session.resyncs == session.reconnects == 0
    assert churn.added > 2 * len(CHAINS)
    assert failed > 0


def test_drafts(client: Client, vllm_module: Any) -> None:
    """One row per draft token. The state contains none of the drafts afterwards."""
    with client.session(vocab_size=VOCAB, max_draft_tokens=3) as session:
        batch = session.add(Request([1], processors=[(vllm_module.AddsLength, {"by": 1})]))
        single = session.add(Request([2], processors=[(vllm_module.RaisesSeen, {"seen": 1})]))
        logits = np.zeros((5, VOCAB), np.float32)
        session.step({batch: [7], single: [8]}, drafts={batch: [3, 4], single: [5]}).apply(logits)
        assert logits[:3, 0].tolist() == [1, 2, 3]
        assert [logits[3, 8], logits[3, 5], logits[4, 8], logits[4, 5]] == [1, 0, 1, 1]
        logits, _ = rows(session, {batch: [3], single: [6]})
        assert logits[0, 0] == 2
        assert [logits[1, 8], logits[1, 5], logits[1, 6]] == [1, 0, 1]


def test_a_raising_request_processor_fails_only_its_request(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        chain = [(vllm_module.RaisesSeen, {"seen": 1.0})]
        bad, good = session.add(Request([1], processors=chain)), session.add(Request([1], processors=chain))
        logits, result = rows(session, {bad: [FAILING_ID], good: [4]})
        assert list(result.failures) == [bad]
        with pytest.raises(ProcessorFailed, match="raised ValueError: thirteen"):
            raise result.failures[bad]
        assert logits[1, 4] == 1
        logits, result = rows(session, {good: [4]})
        assert (logits[0, 4], result.failures) == (2, {})


def test_a_raising_batch_fails_and_the_next_step_is_right(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        bad = session.add(Request([1], processors=[(vllm_module.Bans, {"ban": [FAILING_ID]})]))
        with_it = session.add(Request([1], processors=[(vllm_module.Bans, {"ban": [2]})], on_error="skip"))
        other = session.add(Request([1], processors=[(vllm_module.AddsLength, {"by": 1})]))
        logits, result = rows(session, {bad: [FAILING_ID], with_it: [1], other: [1]})
        assert (list(result.failures), list(result.skipped)) == ([bad], [with_it])
        assert logits[1:, 2].tolist() == [0, 1]
        logits, result = rows(session, {with_it: [1], other: [1]})
        assert (result.failures, result.skipped) == ({}, {})
        assert logits[:, 2].tolist() == [-INF, 2]


def test_validate_params_refuses_only_that_request(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        good = session.add(Request([1], processors=[(vllm_module.AddsLength, {"by": 1})]))
        with pytest.raises(InvalidArgument, match="by is 'much', no number"):
            session.add(Request([1], processors=[(vllm_module.AddsLength, {"by": "much"})]))
        extra: Any = {"extra_args": {"by": []}}
        with pytest.raises(InvalidArgument, match="no number"):
            session.add(Request([1], processors=[(vllm_module.AddsLength, {})], sampling_params=extra))
        with pytest.raises(InvalidArgument, match="send none"):
            session.add(Request([1], processors=[(vllm_module.ban_last, {"by": 1})]))
        logits, _ = rows(session, {good: [1]})
        assert logits[0, 0] == 1


def test_parameters_also_come_from_the_engines_extra_args(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        extra: Any = {"extra_args": {"by": 5, "of": "others"}}
        added = session.add(Request([1], processors=[(vllm_module.AddsLength, {})], sampling_params=extra))
        logits, _ = rows(session, {added: [1]})
        assert logits[0, 0] == 5


def test_argmax_invariant_processors_are_skipped_only_when_all_requests_are_greedy(
    client: Client, vllm_module: Any
) -> None:
    def request(temperature: float | None) -> Request:
        return Request([1], processors=[(vllm_module.Raises, {})], sampling_params={"temperature": temperature})

    with client.session(vocab_size=VOCAB) as session:
        greedy, sampled = session.add(request(0)), session.add(request(0.5))
        assert rows(session, {greedy: []})[0].tolist() == [[0.0] * VOCAB]
        assert rows(session, {greedy: [1], sampled: []})[0].tolist() == [[1.0] * VOCAB, [0.5] * VOCAB]
        assert rows(session, {sampled: [1], greedy: [1]})[0].tolist() == [[0.5] * VOCAB, [1.0] * VOCAB]
        assert rows(session, {greedy: [1]})[0].tolist() == [[0.0] * VOCAB]


def test_each_session_and_each_place_in_a_chain_has_its_own_instance(client: Client, vllm_module: Any) -> None:
    chain = [(vllm_module.AddsLength, {"by": 1}), (vllm_module.AddsLength, {"by": 10})]
    with client.session(vocab_size=VOCAB) as one, client.session(vocab_size=2 * VOCAB) as other:
        here, there = one.add(Request([1], processors=chain)), other.add(Request([1], processors=chain))
        assert rows(one, {here: [1]})[0][0, 0] == 11
        assert rows(other, {there: [1, 1]})[0][0, 0] == 22
        assert rows(one, {here: [1]})[0][0, 0] == 22


def test_stateless_calls(client: Client, vllm_module: Any) -> None:
    requests = [Request([1], [2, 3], processors=[(vllm_module.AddsLength, {"by": by})]) for by in (1, 2)]
    result = client.apply(np.zeros((2, VOCAB), np.float32), requests)
    assert result.logits[:, 0].tolist() == [2, 4]
    result = client.apply(np.zeros((4, VOCAB), np.float32), requests, num_tokens_in_batch=2)
    assert result.logits[:, 0].tolist() == [2, 2, 4, 4]


def test_without_isolation_a_batch_processor_is_refused(
    start_server: Callable[..., RunningServer], vllm_module: Any
) -> None:
    running = start_server("--enable-custom-logit-processor", "--isolation", "none")
    with Client(running.target) as client, client.session(vocab_size=VOCAB) as session:
        with pytest.raises(PayloadError, match=r"vllm is not installed on the server.*--isolation process"):
            session.add(Request([1], processors=[(vllm_module.AddsLength, {})]))
        added = session.add(Request([1], processors=[(vllm_module.ban_last, {})]))  # refers to nothing of vLLM
        assert rows(session, {added: [4]})[0][0, 4] == -INF
