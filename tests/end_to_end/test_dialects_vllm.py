"""Processors of vLLM in the workers of a real server, without vLLM: batch-level, per request, revised model runner.

Random sequences of added, removed and skipped requests are compared with a reference model of each request.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, PayloadError, ProcessorFailed, Request
from logitport.dialects import InDialect
from tests.engine_stubs import importable_stubs
from tests.slot_processors import naive
from tests.toy_processors import Double

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from logitport.session import Handle, Session, StepResult
    from tests.conftest import RunningServer

INF = float("inf")
FAILING_ID = 13
DRAFTS = 3
VOCAB, MAX_LIVE = 24, 8
Chain = list[tuple[str, dict[str, Any]]]


@dataclass(eq=False)
class SingleRequest:
    """Base class of the reference model of one request."""

    chain: Chain
    prompt: list[int]
    output: list[int] = field(default_factory=list)


@dataclass
class Churn:
    """The requests of one session: the model of each, and its ids not yet sent to the session.

    New requests get the chains in turn. `processor` maps the kind of a chain entry to a registered processor.
    """

    session: Session
    random: np.random.Generator
    chains: list[Chain]
    model: Callable[[Chain, list[int]], Any]
    processor: Callable[[str], Any]
    on_error: Any = "abort"
    live: dict[Handle, Any] = field(default_factory=dict)
    new: dict[Handle, list[int]] = field(default_factory=dict)
    added: int = 0

    def next_step(self) -> list[Handle]:
        """Add and remove requests at random; return the requests of the next step in random order."""
        while len(self.live) < MAX_LIVE and self.random.random() < 0.8:
            self._add()
        if self.random.random() < 0.35:
            self.session.remove(gone := list(self.live)[self.random.integers(len(self.live))])
            del self.live[gone], self.new[gone]
        included = [handle for handle in self.live if self.random.random() < 0.8]
        self.random.shuffle(included)  # type: ignore[arg-type]
        return included

    def sampled(self, handle: Handle, token_ids: list[int]) -> None:
        self.new[handle] = token_ids
        self.live[handle].output += token_ids

    def _add(self) -> None:
        chain, prompt = self.chains[self.added % len(self.chains)], self.random.integers(VOCAB, size=3).tolist()
        resolved = [(self.processor(kind), params) for kind, params in chain]
        handle = self.session.add(Request(prompt, processors=resolved, on_error=self.on_error))
        self.live[handle], self.new[handle] = self.model(chain, prompt), []
        self.added += 1


def rows(session: Session, new_ids: Mapping[Handle, list[int]]) -> tuple[np.ndarray[Any, Any], StepResult]:
    """Apply a step to zeros: float32[requests, vocab_size]."""
    logits = np.zeros((len(new_ids), session.vocab_size), np.float32)
    return logits, session.step(new_ids).apply(logits, check=False)


@pytest.fixture(scope="module")
def vllm_module() -> Iterator[Any]:
    """The module of processors, imported while vLLM or its stand-in can be imported."""
    with importable_stubs():
        yield importlib.import_module("tests.end_to_end.vllm_processors")


@pytest.fixture(scope="module")
def v2_module() -> Iterator[Any]:
    """The same, of processors for the revised model runner."""
    with importable_stubs():
        yield importlib.import_module("tests.end_to_end.vllm_v2_processors")


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


def test_parameters_also_come_from_the_engines_extra_args(client: Client, vllm_module: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        extra: Any = {"extra_args": {"by": 5, "of": "others"}}
        added = session.add(Request([1], processors=[(vllm_module.AddsLength, {})], sampling_params=extra))
        wrong: Any = {"extra_args": {"by": []}}
        with pytest.raises(InvalidArgument, match="no number"):
            session.add(Request([1], processors=[(vllm_module.AddsLength, {})], sampling_params=wrong))
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


# The revised model runner, with drafts


V2_CHAINS: list[Chain] = [
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


class V2Reference(SingleRequest):
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
    server: RunningServer, v2_module: Any, transport: Any, dtype: torch.dtype
) -> None:
    """Sampling is greedy: drafts are accepted up to the first that differs from the argmax of its row."""
    random = np.random.default_rng(3)
    accepted = rejected = 0
    named = {"Double": Double, "disallowed_tokens": "disallowed_tokens", "no_repeat_ngram": "no_repeat_ngram"}
    opening = {"dtype": dtype, "transport": transport, "max_requests": 8, "max_draft_tokens": DRAFTS}
    with Client(server.target) as client, client.session(vocab_size=VOCAB, **opening) as session:
        churn = Churn(session, random, V2_CHAINS, V2Reference, lambda kind: named.get(kind) or getattr(v2_module, kind))
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
    assert churn.added > 2 * len(V2_CHAINS)
    assert min(accepted, rejected) > 50


def test_buffers_match_vllm(client: Client, v2_module: Any) -> None:
    with client.session(vocab_size=VOCAB, max_requests=4) as session:
        sampling_params = [{"allowed_token_ids": [1, 20]}, {}, {"allowed_token_ids": [0]}]
        handles = [
            session.add(Request([1], processors=[(v2_module.Allows, {})], sampling_params=one))
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
            session.add(Request([1], processors=[(v2_module.Allows, {})], sampling_params=too_many))


def test_other_imports_from_vllm(client: Client, v2_module: Any) -> None:
    with client.session(vocab_size=VOCAB, max_draft_tokens=1) as session:
        handles = [session.add(Request([1, 2], processors=[(v2_module.NoRepeat, {"window": n})])) for n in (3, 1, 0)]
        logits, _ = rows(session, {handles[0]: [3, 4], handles[1]: [5], handles[2]: [6]})
        assert [[at for at, value in enumerate(row) if value == -INF] for row in logits] == [[2, 3, 4], [5], []]
        drafted = np.zeros((2, VOCAB), np.float32)
        result = session.step({handles[0]: [7]}, drafts={handles[0]: [8]}).apply(drafted, check=False)
        with pytest.raises(ProcessorFailed, match="cannot be used with speculative decoding"):
            raise result.failures[handles[0]]


def test_a_lost_worker_fails_its_requests_and_the_next_worker_gets_all_others(client: Client, v2_module: Any) -> None:
    # Registered processors of one owner share a worker.
    counts, leaves = (client.register(cls).digest for cls in (v2_module.Counts, v2_module.Leaves))
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
