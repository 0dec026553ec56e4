"""The hook for llama-cpp-python, called as that calls it; a real one is in tests/engines/llama_cpp."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, InvalidArgument, RequestsFailed, ServerUnavailable, SessionClosed
from logitport.integrations.llama_cpp import RemoteLogitsProcessor
from tests.shipped_processors import ForcesLengths, RaisesAfter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.session import Session
    from tests.clock import Clock

VOCAB_SIZE = 200
INF = float("inf")


class Llama:
    """The part of Llama 0.3.36 that processors see: a sampler per sequence, and ctypes in between."""

    def __init__(self, drafts: int = 0) -> None:
        self.input_ids = np.zeros(64, np.intc)
        self.n_tokens = 0
        self.drafts = drafts
        self._sampler: Sampler | None = None

    def generate(self, tokens: list[int], processors: list[RemoteLogitsProcessor]) -> Iterator[int]:
        self._sampler = Sampler(self, processors)
        self.n_tokens = 0
        index = len(tokens) - 1
        while True:
            new = [*tokens, *[7] * self.drafts]  # always wrong
            self.input_ids[self.n_tokens : self.n_tokens + len(new)] = new
            self.n_tokens += len(new)
            token = self.sample(processors, idx=index)
            yield token
            tokens = [token]
            index += 1
            self.n_tokens = index

    def sample(self, processors: list[RemoteLogitsProcessor], idx: int | None = None) -> int:
        tmp_sampler = self._sampler is None
        if self._sampler is None:
            self._sampler = Sampler(self, processors)
        ridx = idx - self.n_tokens if idx is not None else -1
        token = self._sampler.sample(ridx)
        if tmp_sampler:
            self._sampler = None
        return token


class Sampler:
    def __init__(self, model: Llama, processors: list[RemoteLogitsProcessor]) -> None:
        def apply() -> None:
            data = np.zeros(VOCAB_SIZE, [("id", np.intc), ("logit", np.single), ("p", np.single)])
            data["logit"][1] = 1.0
            for processor in processors:
                data["logit"][:] = processor(model.input_ids[: model.n_tokens], data["logit"])
            self.sampled = int(data["logit"].argmax())

        self.apply = ctypes.CFUNCTYPE(None)(apply)

    def sample(self, ridx: int) -> int:
        self.apply()
        return self.sampled


@pytest.fixture
def remote(client: Client) -> Callable[..., RemoteLogitsProcessor]:
    def make(*chain: Any) -> RemoteLogitsProcessor:
        return RemoteLogitsProcessor(
            [entry if isinstance(entry, tuple) else (entry, {}) for entry in chain], client=client
        )

    return make


def outputs(model: Llama, prompt: list[int], processor: RemoteLogitsProcessor, length: int) -> list[int]:
    ids = model.generate(prompt, [processor])
    return [next(ids) for _ in range(length)]


def best(processor: RemoteLogitsProcessor, *ids: int) -> int:
    return int(processor(np.array(ids, np.intc), np.zeros(VOCAB_SIZE, np.single)).argmax())


def test_scores_are_not_modified_and_the_result_is_new(remote: Any) -> None:
    processor = remote(("disallowed_tokens", {"token_ids": [2, 5]}))
    records = np.zeros(8, [("id", np.intc), ("logit", np.single)])
    scores = records["logit"]  # a strided view
    scores[:] = np.arange(8)
    processed = processor(np.array([1, 2, 3], np.intc), scores)
    assert processed.tolist() == [0, 1, -INF, 3, 4, -INF, 6, 7]
    assert processed.dtype == np.single
    assert processed.flags.owndata
    assert scores.tolist() == list(range(8))
    assert processor.steps == 1
    assert processor.rows_applied == {"disallowed_tokens": 1}
    assert processor.seconds > 0


@pytest.mark.parametrize("scores", [np.zeros((1, 8), np.single), np.zeros(8), np.zeros(8, np.int32)])
def test_other_scores_are_refused(remote: Any, scores: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"expected float32\[vocab_size\]"):
        remote(ForcesLengths)(np.array([1], np.intc), scores)


@pytest.mark.parametrize("processors", ["disallowed_tokens", [("disallowed_tokens",)], [["a", 1]], None, {"a": {}}])
def test_other_processors_are_refused(client: Client, processors: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"expected \(processor, parameters\) pairs"):
        RemoteLogitsProcessor(processors, client=client)


def test_ids_beyond_the_scores_are_refused_and_the_next_call_starts_over(remote: Any) -> None:
    processor = remote(ForcesLengths)
    with pytest.raises(InvalidArgument, match="200"):
        best(processor, 1, VOCAB_SIZE)
    assert best(processor, 1, 2) == 102


def test_a_custom_loop(remote: Any) -> None:
    processor = remote(ForcesLengths)
    assert best(processor, 5, 6, 7) == 103
    assert best(processor, 5, 6, 7, 8) == 101
    assert best(processor, 5, 6, 7, 8, 9) == 102
    assert best(processor, 5, 6, 7, 8, 1) == 102, "one id was taken back"
    assert best(processor, 5, 6, 7, 3, 4, 5) == 103, "two ids were taken back"
    assert best(processor, 5, 6, 7, 3, 4, 5, 6, 7) == 108, "two ids more are another sequence"
    assert best(processor, 5, 6) == 102
    processor.close()
    assert best(processor, 5, 6, 7) == 103
    with processor:
        assert best(processor, 5, 6, 7, 8) == 101
    assert best(processor, 5, 6, 7, 8) == 104


def test_each_completion_is_a_new_request_whatever_its_prompt(remote: Any) -> None:
    processor, model = remote(ForcesLengths), Llama()
    first = outputs(model, [5, 6, 7], processor, 4)
    assert first == [103, 101, 102, 103]
    assert outputs(model, [5, 6, 7, *first], processor, 2) == [107, 101]
    assert outputs(model, [5, 6, 7, *first, 107], processor, 2) == [108, 101], "one id more than the one before"
    assert processor.steps == 8
    assert list(processor.rows_applied.values()) == [8]


def test_drafts_are_not_part_of_the_history(remote: Any) -> None:
    assert outputs(Llama(drafts=3), [5, 6], remote(ForcesLengths), 4) == [102, 101, 102, 103]


def test_sampling_without_generate_is_a_custom_loop(remote: Any) -> None:
    processor, model = remote(ForcesLengths), Llama()
    model.input_ids[:4], model.n_tokens = [4, 5, 6, 7], 2
    assert model.sample([processor]) == 102
    model.n_tokens = 3
    assert model.sample([processor]) == 101
    processor.close()
    model.n_tokens = 4
    assert model.sample([processor]) == 104


@pytest.mark.parametrize("length", [3, 10])
def test_a_failure_is_raised_through_ctypes(remote: Any, length: int) -> None:
    processor, model = remote((RaisesAfter, {"at": 2})), Llama()
    with pytest.raises(RequestsFailed, match="too many output ids") as failed:
        outputs(model, [5, 6], processor, length)
    assert "in edit" in str(failed.value)
    assert sys.getprofile() is None
    assert outputs(model, [5, 6], processor, 2) == [1, 1]


@pytest.mark.slow
def test_a_lost_server_and_ctrl_c_are_raised_through_ctypes(
    start_server: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    with Client(server.target, timeout=5) as client:
        processor, model = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [1]})], client=client), Llama()
        ids = model.generate([5], [processor])
        assert next(ids) == 0
        server.stop()
        with pytest.raises(ServerUnavailable):
            next(ids)
        clock.now += 100.0

        def interrupted(**_: Any) -> Session:
            raise KeyboardInterrupt

        monkeypatch.setattr(client, "session", interrupted)
        with pytest.raises(KeyboardInterrupt):
            outputs(model, [5], processor, 1)


def test_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    with RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [0]})]) as remote:
        assert outputs(Llama(), [5, 6], remote, 3) == outputs(Llama(), [5, 6], remote, 3) == [1, 1, 1]
    assert remote.steps == 6


def test_another_llama_cpp_python_is_refused(remote: Any) -> None:
    """Its local names differ, so the meaning of its ids and the frame to raise in are unknown."""
    names: dict[str, Any] = {"__name__": "llama_cpp.llama", "Sampler": Sampler}
    exec("def generate(model, processors):\n    Sampler(model, processors).sample(-1)\n    return 'text'", names)
    model = Llama()
    model.input_ids[:2], model.n_tokens = [5, 6], 2
    with pytest.raises(InvalidArgument, match=r"install 0\.3\.36"):
        names["generate"](model, [remote(ForcesLengths)])


def test_sessions_end_with_the_next_completion_and_with_the_model(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[Session] = []
    open_session = client.session

    def open_and_record(**options: Any) -> Session:
        sessions.append(open_session(**options))
        return sessions[-1]

    monkeypatch.setattr(client, "session", open_and_record)
    processor, model = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [1]})], client=client), Llama()
    for _ in range(2):
        outputs(model, [5], processor, 2)
    assert [is_closed(session) for session in sessions] == [True, False]
    del model
    gc.collect()
    assert [is_closed(session) for session in sessions] == [True, True]


def is_closed(session: Session) -> bool:
    try:
        session.step({})
    except SessionClosed:
        return True
    return False
