"""Processors of transformers in sandboxed workers of a real server give the same result as in `generate`."""

from __future__ import annotations

import copy
import functools
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from logitport import Client, CustomLogitProcessor, InvalidArgument, Request
from tests.transformers_processors import CASES, VOCAB, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport.session import Session
    from tests.conftest import RunningServer


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    with client.session(vocab_size=VOCAB, dtype=torch.float32, max_draft_tokens=4) as opened:
        yield opened


def ids_of(history: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(history)])


def random_logits(seed: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


class Shift(LogitsProcessor):
    """A custom processor. The added value depends on the history and on its configuration."""

    def __init__(self, ids: Sequence[int] = (1,), by: float = 1.0) -> None:
        self.ids, self.by = torch.tensor(list(ids)), by

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, self.ids] += self.by * input_ids.shape[1]
        return scores


class ByPosition(LogitsProcessor):
    """Keeps state per batch position and requires a history that only grows."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.seen:
            self.seen = [0] * len(input_ids)
        for row in range(len(input_ids)):
            self.seen[row] += int(input_ids[row, -1])
            scores[row, self.seen[row] % VOCAB] += 5
        return scores


class Sharpen(CustomLogitProcessor):
    """A processor of SGLang's dialect."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits * 1.5


def shift(input_ids: torch.Tensor, scores: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    """A processor that is a plain function."""
    return torch.roll(scores, int(input_ids[0, -1])) * by


def test_every_processor_gives_the_same_result_as_in_transformers(session: Session) -> None:
    """One batch holds three requests per processor: two of one length and one of another."""
    requests: list[tuple[Case, list[int], Any, Any]] = []
    for case in CASES:
        for history in ([3, 1], [1, 2], [7]):
            handle = session.add(Request(history, processors=[case.shipped]))
            requests.append((case, history, handle, LogitsProcessorList([case.native()])))
    for step in range(6):
        logits = random_logits(step, len(requests))
        for row, (case, *_) in zip(logits, requests, strict=True):
            if case.name.startswith("InfNan"):
                row[1], row[2], row[3] = torch.inf, -torch.inf, torch.nan
        rows = zip(requests, logits, strict=True)
        expected = [native(ids_of(history), row[None].clone()) for (_, history, _, native), row in rows]
        new = {handle: [history[-1]] if step else [] for _, history, handle, _ in requests}
        session.step(new).apply(logits)
        for (case, *_), row, reference in zip(requests, logits, expected, strict=True):
            assert torch.allclose(row[None], reference, rtol=1e-6, atol=1e-6), case
        for _, history, *_ in requests:
            history.append((history[-1] * 5 + step) % VOCAB)


MANY = LogitsProcessorList([Shift([6]), TopKLogitsWarper(9), ByPosition()])
FORMS: list[tuple[Any, dict[str, Any], Any]] = [
    (Shift, {"ids": [2, 3], "by": 2.0}, Shift([2, 3], 2.0)),
    (functools.partial(Shift, [4]), {"by": 0.5}, Shift([4], 0.5)),
    (Shift([5]), {}, Shift([5])),
    (MANY, {}, MANY),
    (shift, {}, shift),
    (shift, {"by": 2.0}, functools.partial(shift, by=2.0)),
    (ByPosition, {}, ByPosition()),
    (RepetitionPenaltyLogitsProcessor, {"penalty": 1.2}, RepetitionPenaltyLogitsProcessor(1.2)),
]


@pytest.mark.parametrize(("shipped", "params", "native"), FORMS)
def test_64_greedy_steps_with_churn(session: Session, shipped: Any, params: dict[str, Any], native: Any) -> None:
    """Eight requests at a time; ended ones are replaced. A built-in and a processor of SGLang's precede this one."""
    model = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    chain = [("no_repeat_ngram", {"ngram_size": 3}), (Sharpen, {}), (shipped, params)]
    running: dict[Any, tuple[list[int], LogitsProcessorList]] = {}
    new: dict[Any, list[int]] = {}
    begun = 0
    for step in range(64):
        if step % 9 == 8:
            for handle in list(running)[:2]:
                session.remove(handle)
                del running[handle], new[handle]
        while len(running) < 8:
            prompt = [begun % VOCAB, *range(begun % 5)]
            handle = session.add(Request(prompt, processors=chain))
            begun += 1
            running[handle] = prompt, native_chain(native)
            new[handle] = []
        raw = torch.stack([model[history[-1]] for history, _ in running.values()])
        logits = raw.clone()
        session.step(new).apply(logits)
        for row, before, (handle, (history, processors)) in zip(logits, raw, running.items(), strict=True):
            token_id = int(row.argmax())
            assert token_id == int(processors(ids_of(history), before[None].clone())[0].argmax())
            history.append(token_id)
            new[handle] = [token_id]


def native_chain(processor: Any) -> LogitsProcessorList:
    """Return the chain of the built-in, SGLang's and this processor in terms of transformers."""
    own = copy.deepcopy(processor)
    parts = own if isinstance(own, LogitsProcessorList) else [own]
    return LogitsProcessorList([NoRepeatNGramLogitsProcessor(3), TemperatureLogitsWarper(1 / 1.5), *parts])


def test_processors_of_transformers_by_name_need_no_flag(start_server: Callable[..., RunningServer]) -> None:
    name = "transformers:RepetitionPenaltyLogitsProcessor"
    running = start_server("--logits-processors", name)
    with Client(running.target) as client, client.session(vocab_size=VOCAB, dtype=torch.bfloat16) as session:
        handles = [session.add(Request([1, at], processors=[(name, {"penalty": 1.5})])) for at in range(3)]
        logits = random_logits(0, 3).bfloat16()
        rows = [row[None].float() for row in logits]
        native = RepetitionPenaltyLogitsProcessor(1.5)
        expected = [native(ids_of([1, at]), row).bfloat16() for at, row in enumerate(rows)]
        session.step({handle: [] for handle in handles}).apply(logits)
        assert torch.equal(logits, torch.cat(expected))
        with pytest.raises(InvalidArgument, match="`penalty` has to be a strictly positive float"):
            session.add(Request([1], processors=[(name, {"penalty": 0})]))


def has_transformers(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return torch.full_like(scores, float("transformers" in sys.modules))


def test_workers_of_an_idle_server_start_with_transformers_imported(
    start_server: Callable[..., RunningServer],
) -> None:
    running = start_server("--enable-custom-logit-processor")
    with Client(running.target) as client:
        for tenant in range(20):
            with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
                handle = session.add(Request([1], processors=[(has_transformers, {})], tenant=f"t{tenant}"))
                logits = torch.zeros(1, VOCAB)
                session.step({handle: []}).apply(logits)
            if logits[0, 0] == 1:
                return
            time.sleep(3)  # longer than the idle time after which the workers' parent process imports slow modules
    pytest.fail("they never had it")
