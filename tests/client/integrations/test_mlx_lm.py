"""The hook for MLX-LM, called as that calls it, without MLX; a real one is in tests/engines/mlx_lm."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import InvalidArgument, RequestsFailed
from logitport.integrations.mlx_lm import RemoteLogitsProcessor
from tests.shipped_processors import ForcesLengths, RaisesAfter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import Client

VOCAB_SIZE = 200
EOS = 2
INF = float("inf")

# The part of MLX-LM 0.32.2 that calls processors; numpy arrays stand for those of MLX.
SOURCE = """
import numpy as np

def generate_step(prompt, processors, max_tokens):
    tokens = None
    def _step(ids):
        nonlocal tokens
        tokens = ids if tokens is None else np.concatenate([tokens, ids])
        logits = np.zeros((1, 200), np.float32)
        for processor in processors:
            logits = processor(tokens, logits)
        return logits.argmax(-1)
    y = _step(np.array(prompt))
    for n in range(max_tokens):
        following = _step(y)
        yield int(y[0])
        y = following

def stream_generate(tokenizer, prompt, processors, draft=None):
    drafting = draft is not None
    steps = speculative_generate_step(prompt, processors, draft) if drafting else generate_step(prompt, processors, 4)
    for token in steps:
        if token in tokenizer.eos_token_ids:
            break
        yield token

def speculative_generate_step(prompt, processors, draft):
    seen = []
    def _step(width, tokens):
        logits = np.zeros((1, width), np.float32)
        for processor in processors:
            logits = processor(np.array(tokens), logits)
        return int(logits.argmax())
    def _draft_generate(tokens):
        seen.append(_step(300, tokens))
        return draft
    history = list(prompt[-1:])
    while True:
        drafts = [_draft_generate(history)]
        first = _step(200, history)
        second = _step(200, [*history, first])
        for token in [first, second] if first == drafts[0] else [first]:
            history.append(token)
            yield token

class GenerationBatch:
    def __init__(self, contexts, processors):
        self._token_context, self.processors = contexts, processors
    def _step(self):
        for e in range(len(self._token_context)):
            context = self._token_context[e]
            for processor in self.processors:
                context.ids.append(int(processor(np.array(context.ids), np.zeros((1, 200), np.float32)).argmax()))

def unknown_step(processor):
    return processor(np.array([1]), np.zeros((1, 200), np.float32))
"""


@pytest.fixture
def mlx_lm(mlx: None) -> Any:
    names: dict[str, Any] = {"__name__": "mlx_lm.generate"}
    exec(SOURCE, names)
    return SimpleNamespace(**{name: value for name, value in names.items() if not name.startswith("__")})


@pytest.fixture
def remote(client: Client, mlx_lm: Any) -> Callable[..., RemoteLogitsProcessor]:
    def make(*chain: Any) -> RemoteLogitsProcessor:
        return RemoteLogitsProcessor(
            [entry if isinstance(entry, tuple) else (entry, {}) for entry in chain], client=client
        )

    return make


class Context:
    """The ids of a row of a batch."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)


def best(processor: RemoteLogitsProcessor, *ids: int) -> int:
    return int(processor(np.array(ids), np.zeros((1, VOCAB_SIZE), np.float32)).argmax())


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_logits_are_not_modified_and_keep_their_dtype(remote: Any, dtype: Any) -> None:
    processor = remote(("disallowed_tokens", {"token_ids": [2, 5]}))
    logits = np.arange(8).astype(dtype)[None]
    processed = processor(np.array([1, 2, 3], np.uint32), logits)
    assert processed.tolist() == [[0, 1, -INF, 3, 4, -INF, 6, 7]]
    assert processed.dtype == dtype
    assert logits.tolist() == [list(range(8))]
    assert processor.steps == 1
    assert processor.rows_applied == {"disallowed_tokens": 1}
    assert processor.seconds > 0
    assert len(processor.reports) == 1


@pytest.mark.parametrize(
    "logits", [np.zeros(8, np.float32), np.zeros((2, 8), np.float32), np.zeros((1, 8)), np.zeros((1, 8), np.int32)]
)
def test_other_logits_are_refused(remote: Any, logits: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"expected floats \[1, vocab_size\]"):
        remote(ForcesLengths)(np.array([1]), logits)


def test_other_processors_are_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"expected \(processor, parameters\) pairs"):
        RemoteLogitsProcessor("disallowed_tokens", client=client)  # type: ignore[arg-type]


def test_a_custom_loop(remote: Any) -> None:
    processor = remote(ForcesLengths)
    assert best(processor, 5, 6, 7) == 103
    assert best(processor, 5, 6, 7, 8) == 101
    assert best(processor, 5, 6, 7, 8, 9) == 102
    assert best(processor, 5, 6, 7, 8, 1) == 102, "one id was taken back"
    assert best(processor, 5, 6) == 102
    processor.close()
    assert best(processor, 5, 6, 7) == 103
    with pytest.raises(RequestsFailed):
        best(remote((RaisesAfter, {"at": 0})), 5)


def test_each_generation_is_a_new_request_whatever_its_prompt(remote: Any, mlx_lm: Any) -> None:
    processor = remote(ForcesLengths)
    assert list(mlx_lm.generate_step([5, 6, 7], [processor], 4)) == [103, 101, 102, 103]
    assert list(mlx_lm.generate_step([5, 6, 7, 103], [processor], 2)) == [104, 101]
    one, other = (mlx_lm.generate_step([1, 2], [processor], 3) for _ in range(2))
    assert list(zip(one, other, strict=True)) == [(102, 102), (101, 101), (102, 102)]


@pytest.mark.parametrize("at", [0, 2, 3])
def test_a_failure_is_raised_after_the_ids_before_it(remote: Any, mlx_lm: Any, at: int) -> None:
    steps = mlx_lm.generate_step([5, 6], [remote((RaisesAfter, {"at": at}))], 4)
    assert [next(steps) for _ in range(at)] == [0] * at
    with pytest.raises(RequestsFailed, match="too many output ids"):
        next(steps)


def test_a_failure_of_the_step_that_is_dropped_is_none(remote: Any, mlx_lm: Any) -> None:
    processor = remote((RaisesAfter, {"at": 4}))
    for _ in range(2):
        assert list(mlx_lm.generate_step([5, 6], [processor], 4)) == [0] * 4
    gc.collect()
    assert not processor._failed, "an error keeps no generation alive"


@pytest.mark.parametrize("draft", [101, 7], ids=["accepted", "rejected"])
def test_drafts(remote: Any, mlx_lm: Any, draft: int) -> None:
    """The history has the prompt and verified ids; the logits of the draft model have another width."""
    steps = mlx_lm.speculative_generate_step([5, 6], [remote(ForcesLengths)], draft)
    assert [next(steps) for _ in range(4)] == [102, 101, 102, 103]


def test_with_drafts_a_row_behind_the_end_is_not_processed(remote: Any, mlx_lm: Any) -> None:
    ends_at_once = remote(("disallowed_tokens", {"token_ids": [0, 1]}), (RaisesAfter, {"at": 1}))
    assert list(mlx_lm.stream_generate(SimpleNamespace(eos_token_ids={EOS}), [5, 6], [ends_at_once], EOS)) == []
    with pytest.raises(RequestsFailed, match="too many output ids"):
        list(mlx_lm.stream_generate(SimpleNamespace(eos_token_ids={EOS + 1}), [5, 6], [ends_at_once], EOS))


def test_rows_of_a_batch_have_their_own_histories(remote: Any, mlx_lm: Any) -> None:
    first, second = Context(5, 6), Context(7)
    batch = mlx_lm.GenerationBatch([first, second], [remote(ForcesLengths)])
    batch._step()
    batch._token_context = [second]
    batch._step()
    assert (first.ids, second.ids) == ([5, 6, 102], [7, 101, 101])


def test_a_row_that_failed_stays_failed(remote: Any, mlx_lm: Any) -> None:
    batch = mlx_lm.GenerationBatch([Context(5)], [remote((RaisesAfter, {"at": 0}))])
    batch._step()
    with pytest.raises(RequestsFailed, match="too many output ids"):
        batch._step()
    with pytest.raises(InvalidArgument, match="has failed before; start another"):
        batch._step()


def test_an_unknown_mlx_lm_is_refused(remote: Any, mlx_lm: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"unknown_step\(\)"):
        mlx_lm.unknown_step(remote(ForcesLengths))


def test_sessions_get_the_ids_that_end_a_sequence_and_end_with_the_generation(
    client: Client, mlx_lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    closed: list[bool] = []
    open_session = client.session

    def open_and_record(**options: Any) -> Any:
        opened.append(options)
        session = open_session(**options)
        close = session.close
        monkeypatch.setattr(session, "close", lambda: (closed.append(True), close()))
        return session

    monkeypatch.setattr(client, "session", open_and_record)
    processor = RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [0]})], client=client, tokenizer_id="a/b")

    def run(tokenizer: Any) -> Iterator[int]:
        return mlx_lm.stream_generate(tokenizer, [5], [processor])

    assert list(run(SimpleNamespace(eos_token_ids={EOS, 9}))) == [1] * 4
    assert opened[0].items() >= {"vocab_size": VOCAB_SIZE, "tokenizer_id": "a/b", "eos_token_ids": [2, 9]}.items()
    gc.collect()
    assert closed == [True]
    list(mlx_lm.generate_step([5], [processor], 2))
    assert opened[1]["eos_token_ids"] == []
    processor = RemoteLogitsProcessor([], client=client, eos_token_ids={7})
    list(run(SimpleNamespace(eos_token_ids={EOS})))
    assert opened[2]["eos_token_ids"] == [7]


def test_without_a_server(mlx_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    with RemoteLogitsProcessor([("disallowed_tokens", {"token_ids": [0]})]) as processor:
        assert list(mlx_lm.generate_step([5, 6], [processor], 3)) == [1, 1, 1]
    assert processor.steps == 4
