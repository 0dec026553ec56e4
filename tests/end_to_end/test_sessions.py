"""Engines add and remove requests, and every row equals that of a reference model in this process."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch

from logitport import Client, CustomLogitProcessor, EditProcessor, EditRequest, ProcessorWarning, Request, RowEdits
from logitport_builtins import BUILTINS
from tests.toy_processors import AddCallCount

if TYPE_CHECKING:
    from logitport.session import Handle, PendingRequest, Session

VOCAB = 48
INF = float("inf")
WINDOW = 7


class DenySeen(EditProcessor):
    """Denies the ids of a window of the history, counted as the history grows."""

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.state[-request.params["window"] :])


class AddsOutputLength(CustomLogitProcessor):
    """Adds the number of outputs, times a factor."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        amounts = [len(params["__req__"].output_ids) * params["factor"] for params in custom_param_list]
        return logits + torch.tensor(amounts, dtype=logits.dtype)[:, None]


class RaisesAtThirteen(EditProcessor):
    """Raises whenever the last id is 13."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if request.history.last_output == 13:
            raise ValueError("thirteen")
        edits.bias([0], [1.0])


CHAINS: list[list[tuple[Any, dict[str, Any]]]] = [
    [],
    [("disallowed_tokens", {"token_ids": [1, 5]})],
    [(DenySeen, {"window": WINDOW}), ("disallowed_tokens", {"token_ids": [2]})],
    [(AddsOutputLength, {"factor": 2.0})],
    [(DenySeen, {"window": WINDOW}), (AddsOutputLength, {"factor": 3.0}), (AddCallCount, {})],
    [(AddCallCount, {})],
    [(RaisesAtThirteen, {})],
]


class Model:
    """Reference model of one request."""

    def __init__(self, chain: list[tuple[Any, dict[str, Any]]], prompt: list[int]) -> None:
        self.chain, self.prompt, self.output = chain, prompt, list[int]()
        self.calls = 0

    def process(self, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        before = row.copy()
        for processor, params in self.chain:
            if processor == "disallowed_tokens":
                row[params["token_ids"]] = -INF
            elif processor is DenySeen:
                row[(self.prompt + self.output)[-WINDOW:]] = -INF
            elif processor is AddsOutputLength:
                row += len(self.output) * params["factor"]
            elif processor is AddCallCount:
                self.calls += 1
                row += self.calls
            elif self.output[-1:] == [13]:
                return before
            else:
                row[0] += 1
        return row


def churn(client: Client, seed: int, transport: Literal["grpc", "local"]) -> Session:
    """Add, remove and step requests at random, with several new ids per step. Half are added in the background."""
    random = np.random.default_rng(seed)
    session = client.session(vocab_size=VOCAB, dtype=torch.float32, transport=transport, max_requests=6)
    models: dict[Handle, Model] = {}
    pending: dict[PendingRequest, Model] = {}
    for _ in range(60):
        if len(models) + len(pending) < 6 and random.random() < 0.5:
            chain = CHAINS[random.integers(len(CHAINS))]
            prompt = random.integers(VOCAB, size=random.integers(10)).tolist()
            request = Request(prompt, processors=chain, on_error="skip")
            if random.random() < 0.5:
                models[session.add(request)] = Model(chain, prompt)
            else:
                pending[session.begin_add([request])[0]] = Model(chain, prompt)
        elif pending and random.random() < 0.15:
            cancelled = next(iter(pending))
            cancelled.cancel()
            del pending[cancelled]
        elif models and random.random() < 0.15:
            session.remove(gone := list(models)[random.integers(len(models))])
            del models[gone]
        for ended in session.poll():
            assert ended.handle is not None, ended.error
            models[ended.handle] = pending.pop(ended)
        part = [handle for handle in models if random.random() < 0.8]
        random.shuffle(part)  # type: ignore[arg-type]
        new_ids = {handle: random.integers(VOCAB, size=random.integers(4)).tolist() for handle in part}
        logits = torch.from_numpy(random.integers(-9, 9, (len(part), VOCAB)).astype(np.float32))
        expected = logits.numpy().copy()
        result = session.step(new_ids).apply(logits)
        tripped = []
        for row, handle in enumerate(part):
            models[handle].output += new_ids[handle]
            expected[row] = models[handle].process(expected[row])
            if models[handle].chain == [(RaisesAtThirteen, {})] and models[handle].output[-1:] == [13]:
                tripped.append(handle)
        np.testing.assert_array_equal(logits.numpy(), expected)
        assert result.failures == {}
        assert set(result.skipped) == set(tripped)
        assert len(session) == len(models)
    assert session.resyncs == session.reconnects == 0
    return session


@pytest.mark.parametrize("transport", ["grpc", "local"])
@pytest.mark.slow
def test_several_engines_at_once(server: Any, transport: Any) -> None:
    with Client(server.target) as client, ThreadPoolExecutor(4) as pool:
        for session in pool.map(lambda seed: churn(client, seed, transport), range(4)):
            session.close()


def test_one_engine_does_not_see_another(client: Client) -> None:
    """Each session has its own state, even with the same slot, class and parameters."""
    with client.session(vocab_size=VOCAB) as first, client.session(vocab_size=VOCAB) as second:
        handles = {session: session.add(Request([1], processors=[(AddCallCount, {})])) for session in (first, second)}
        for turn, session in enumerate([first, first, second, first], 1):
            logits = np.zeros((1, VOCAB), np.float32)
            session.step({handles[session]: []}).apply(logits)
            assert logits[0, 0] == (1 if session is second else turn - (turn > 3))


FEW_IDS = 8
SOME = Request([1], processors=[("disallowed_tokens", {"token_ids": [1]})])
ALL = Request([1], processors=[("disallowed_tokens", {"token_ids": list(range(FEW_IDS))})])
MESSAGE = r"all ids of rows \[1\] are denied"


def zeros() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.zeros((2, FEW_IDS), np.float32)


def test_a_row_with_all_ids_denied_is_reported_in_a_session(client: Client) -> None:
    with client.session(vocab_size=FEW_IDS) as session:
        handles = [session.add(request) for request in (SOME, ALL)]
        with pytest.warns(ProcessorWarning, match=MESSAGE) as warned:
            session.step(dict.fromkeys(handles, ())).apply(zeros())
        assert warned[0].filename == __file__
        with pytest.warns(ProcessorWarning, match=MESSAGE):
            session.step(dict.fromkeys(handles, ())).edits()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = session.step(dict.fromkeys(handles, ())).apply(zeros(), check=False)
    assert result.all_denied_rows == (1,)


def test_a_row_with_all_ids_denied_is_reported_in_one_call(client: Client) -> None:
    with pytest.warns(ProcessorWarning, match=MESSAGE) as warned:
        client.apply(zeros(), [SOME, ALL])
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert client.apply(zeros(), [SOME, ALL], check=False).all_denied_rows == (1,)


PARAMS = {
    "bad_words": {"bad_words_ids": [[5], [6, 7], [1, 2, 9]]},
    "dry": {"dry_multiplier": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.25},
    "green_list": {"bias": 1.5},
    "logit_bias": {"logit_bias": {"3": -4.0}},
    "min_tokens": {"min_tokens": 5, "stop_token_ids": [0]},
    "presence_penalty": {"presence_penalty": 0.5},
}


@pytest.mark.parametrize("name", PARAMS)
def test_a_built_in_gives_the_logits_of_its_class(client: Client, name: str) -> None:
    prompt, output = [1, 2, 6, 1, 2], [6, 1, 2]
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    request = Request(prompt, output_token_ids=output, processors=[(name, PARAMS[name])])
    found = client.apply(logits, [request]).logits
    req = SimpleNamespace(origin_input_ids=prompt, output_ids=output)
    assert torch.equal(torch.as_tensor(found), BUILTINS[name]()(logits.clone(), [{**PARAMS[name], "__req__": req}]))
    assert not torch.equal(torch.as_tensor(found), logits)
