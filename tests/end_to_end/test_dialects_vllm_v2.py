"""Processors for vLLM's revised model runner in the workers of a real server, without vLLM, with drafts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, ProcessorFailed, Request
from tests.end_to_end.churn import VOCAB, Chain, Churn, SingleRequest, rows
from tests.engine_stubs import importable_stubs
from tests.slot_processors import naive
from tests.toy_processors import Double

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RunningServer

INF = float("inf")
DRAFTS = 3


@pytest.fixture(scope="module")
def vllm_module() -> Iterator[Any]:
    """The module of processors, imported while vLLM or its stand-in can be imported."""
    with importable_stubs():
        yield importlib.import_module("tests.end_to_end.vllm_v2_processors")


CHAINS: list[Chain] = [
    [("Counts", {})],
    [("Biases", {"bias": {"3": 2.5, "7": -1}, "min_tokens": 4, "stop": [2, 5]})],
    [("BadWords", {"bad_words": [[1, 2], [4], [5, 6, 7]]})],
    [("Biases", {})],
    [
        ("disallowed_tokens", {"token_ids": [1]}),
        ("Counts", {}),
        ("BadWords", {"bad_words": [[n, 3] for n in range(9)]}),
    ],
    [("Counts", {}), ("Double", {}), ("Biases", {"bias": {"0": 9}}), ("no_repeat_ngram", {"ngram_size": 1})],
]


class Reference(SingleRequest):
    """Reference model of one request."""

    steps = 0

    def process(self, row: list[float], drafts: list[int]) -> list[float]:
        output = self.output + drafts
        for kind, params in self.chain:
            if kind == "Double":
                row = [2 * value for value in row]
            elif kind == "no_repeat_ngram":
                row = [-INF if token_id in self.prompt + output else value for token_id, value in enumerate(row)]
            elif kind == "disallowed_tokens":
                row = [-INF if token_id in params["token_ids"] else value for token_id, value in enumerate(row)]
            else:
                row = naive(kind, row, self.prompt, output, params, self.steps)
        return row


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_64_steps_with_churn_and_drafts(
    server: RunningServer, vllm_module: Any, transport: Any, dtype: torch.dtype
) -> None:
    """Sampling is greedy: drafts are accepted up to the first that differs from the argmax of its row."""
    random = np.random.default_rng(3)
    accepted = rejected = 0
    named = {"Double": Double, "disallowed_tokens": "disallowed_tokens", "no_repeat_ngram": "no_repeat_ngram"}
    opening = {"dtype": dtype, "transport": transport, "max_requests": 8, "max_draft_tokens": DRAFTS}
    with Client(server.target) as client, client.session(vocab_size=VOCAB, **opening) as session:
        churn = Churn(session, random, CHAINS, Reference, lambda kind: named.get(kind) or getattr(vllm_module, kind))
        for _ in range(64):
            part = churn.next_step()
            drafts = {handle: random.integers(VOCAB, size=random.integers(DRAFTS + 1)).tolist() for handle in part}
            placed = [(handle, offset) for handle in part for offset in range(1 + len(drafts[handle]))]
            logits = torch.from_numpy(random.integers(-9, 9, (len(placed), VOCAB))).to(dtype)
            for row, (handle, offset) in enumerate(placed):
                if offset < len(drafts[handle]) and random.random() < 0.7:
                    logits[row, drafts[handle][offset]] = 40
            for handle in part:
                churn.live[handle].steps += 1
            expected = [
                churn.live[handle].process(logits[row].tolist(), drafts[handle][:offset])
                for row, (handle, offset) in enumerate(placed)
            ]
            result = session.step({handle: churn.new[handle] for handle in part}, drafts=drafts).apply(logits)
            assert result.failures == {}
            torch.testing.assert_close(logits, torch.tensor(expected).view(-1, VOCAB).to(dtype), rtol=0, atol=0)
            sampled = dict(zip(placed, logits.argmax(-1).tolist(), strict=True))
            for handle in part:
                new: list[int] = []
                for offset in range(1 + len(drafts[handle])):
                    new.append(sampled[handle, offset])
                    if drafts[handle][offset : offset + 1] != new[-1:]:
                        break
                accepted += len(new) - 1
                rejected += len(drafts[handle]) - (len(new) - 1)
                churn.sampled(handle, new)
        assert session.resyncs == session.reconnects == 0
    assert churn.added > 2 * len(CHAINS)
    assert min(accepted, rejected) > 50


def test_buffers_match_vllm(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB, max_requests=4) as session:
        sampling_params = [{"allowed_token_ids": [1, 20]}, {}, {"allowed_token_ids": [0]}]
        handles = [
            session.add(Request([1], processors=[(vllm_module.Allows, {})], sampling_params=one))
            for one in sampling_params
        ]
        for order in (handles, handles[::-1]):
            allowed = [
                [at for at, value in enumerate(row) if value == 0]
                for row in rows(session, {handle: [4] for handle in order})[0]
            ]
            assert allowed == [[[1, 20], list(range(VOCAB)), [0]][handles.index(handle)] for handle in order]
        too_many = {"allowed_token_ids": list(range(9))}
        with pytest.raises(InvalidArgument, match="more than 8 ids are allowed"):
            session.add(Request([1], processors=[(vllm_module.Allows, {})], sampling_params=too_many))


def test_other_imports_from_vllm(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB, max_draft_tokens=1) as session:
        handles = [session.add(Request([1, 2], processors=[(vllm_module.NoRepeat, {"window": n})])) for n in (3, 1, 0)]
        logits, _ = rows(session, {handles[0]: [3, 4], handles[1]: [5], handles[2]: [6]})
        assert [[at for at, value in enumerate(row) if value == -INF] for row in logits] == [[2, 3, 4], [5], []]
        drafted = np.zeros((2, VOCAB), np.float32)
        result = session.step({handles[0]: [7]}, drafts={handles[0]: [8]}).apply(drafted, check=False)
        with pytest.raises(ProcessorFailed, match="cannot be used with speculative decoding"):
            raise result.failures[handles[0]]


def test_a_request_that_cannot_be_added_fails_alone(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        bad = session.add(Request([1], processors=[(vllm_module.Raises, {"raise": True})]))
        skips = session.add(Request([1], processors=[(vllm_module.Raises, {"raise": True})], on_error="skip"))
        good = session.add(Request([1], processors=[(vllm_module.Raises, {})]))
        logits, result = rows(session, {bad: [], skips: [], good: []})
        assert (list(result.failures), list(result.skipped)) == ([bad], [skips])
        with pytest.raises(ProcessorFailed, match="raised ValueError: as asked"):
            raise result.failures[bad]
        assert logits[1:].tolist() == [[0.0] * VOCAB, [1.0] * VOCAB]


def test_a_lost_worker_fails_its_requests_and_the_next_worker_gets_all_others(client: Client, vllm_module: Any) -> None:
    # Registered processors of one owner share a worker.
    counts, leaves = (client.register(cls).digest for cls in (vllm_module.Counts, vllm_module.Leaves))
    with client.session(vocab_size=VOCAB) as session:
        chain = [(counts, {}), (leaves, {})]
        bad = session.add(Request([1], processors=chain, on_error="skip"))
        other = session.add(Request([2], [3], processors=chain, on_error="skip"))
        rows(session, {other: [4]})
        _, result = rows(session, {bad: [13], other: [5]})
        assert set(result.skipped) == {bad, other}
        logits, result = rows(session, {other: [6]})
        assert result.skipped == {}
        assert logits[0][(2 + 3 + 4 + 5 + 6) % VOCAB] == 2  # this is its first step in this worker


def test_stateless_calls(client: Client, vllm_module: Any) -> None:
    requests = [Request([1], [2, 3], processors=[(vllm_module.Counts, {})]), Request([4])]
    result = client.apply(np.zeros((4, VOCAB), np.float32), requests, num_tokens_in_batch=2)
    assert result.logits[:, 6].tolist() == [1, 1, 0, 0]
