"""The example engine with a row's chain, compared with the row's reference."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from examples.engine import Model
from logitport import Request
from tests.compatibility.matrix import (
    REFERENCES,
    REPORT,
    chain_of,
    check_reports,
    lengths,
    prompts,
    reference_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.engine import Engine
    from logitport import Client

VOCAB = 128
MAX_DRAFTS = 2


@cache
def native(reference: str) -> list[list[int]]:
    """The model's output with the reference applied in this process, one request after the other."""
    outputs = []
    for prompt, length in zip(prompts(VOCAB, reference), lengths(), strict=True):
        model, history, cached = Model(VOCAB, slots=1), list(prompt), 0
        for _ in range(length):
            logits = np.float32(model.forward(0, cached, history[cached:])[-1])
            cached = len(history)
            history.append(int(REFERENCES[reference](history, logits).argmax()))
        outputs.append(history[len(prompt) :])
    return outputs


def drafts_of(reference: str) -> Callable[[list[int]], list[int]]:
    """Return a function that guesses the next ids. About half of them are right."""
    known = {tuple(prompt): output for prompt, output in zip(prompts(VOCAB, reference), native(reference), strict=True)}

    def draft(token_ids: list[int]) -> list[int]:
        prompt = next(prompt for prompt in known if tuple(token_ids[: len(prompt)]) == prompt)
        done = len(token_ids) - len(prompt)
        right = known[prompt][done : done + 3]
        return [token_id if (done + n) % 3 else (token_id + 1) % VOCAB for n, token_id in enumerate(right)][:MAX_DRAFTS]

    return draft


def check(engine: Engine, client: Client, row: str, samples: int = 1) -> None:
    """Compare the outputs of the engine, and the reports of the row "report", with those of the reference.

    `samples` is the number of requests for each prompt.
    """
    reference, chain = reference_of(row), chain_of(row, client)
    generations = engine.generate(
        [
            Request(prompt, processors=chain, sampling_params={"temperature": 0, "max_tokens": length})
            for prompt, length in zip(prompts(VOCAB, reference), lengths(), strict=True)
            for _ in range(samples)
        ]
    )
    assert [one.error for one in generations] == [None] * len(generations)
    assert [one.output for one in generations] == [output for output in native(reference) for _ in range(samples)]
    if row == REPORT:
        # The session does not know which drafts of the last step were accepted: of its rows, the first one counts.
        seen = [one.token_ids[: one.handle.history.length + 1] for one in generations]
        assert engine.drafted or seen == [one.token_ids for one in generations]
        check_reports([one.handle.report.to_json() for one in generations], seen, chain)
