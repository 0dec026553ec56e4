"""transformers' own processors give the same results as in transformers, for any grouping of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers.generation.logits_process
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList

from logitport import History, StateLost
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.transformers import instances
from tests.tiers import examples
from tests.transformers_processors import CASES, NOT_OF_A_ROW, VOCAB, Case, names_in_transformers

IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def test_every_processor_of_transformers_is_tested_or_has_a_reason_not_to_be() -> None:
    tested = {case.name for case in CASES}
    assert not tested & NOT_OF_A_ROW.keys()
    assert tested | NOT_OF_A_ROW.keys() == names_in_transformers()
    public = {name for name in dir(transformers) if name.endswith(("LogitsProcessor", "LogitsWarper"))}
    assert public - {"LogitsProcessor"} <= tested | NOT_OF_A_ROW.keys()


def test_the_table_names_existing_classes() -> None:
    listed = instances._OF_SCORES | instances._OF_HISTORY
    assert {getattr(transformers.generation.logits_process, name).__name__ for name in listed} == listed
    assert listed <= {case.name for case in CASES}


@every_case
@settings(max_examples=examples(12))
@given(data=st.data())
def test_rows_equal_those_of_transformers(case: Case, data: st.DataObject) -> None:
    processor, params = case.shipped
    dialect = make_dialect(processor, "its name", shipped=True)
    prompts = data.draw(st.lists(IDS, min_size=1, max_size=4))
    histories = [History(prompt) for prompt in prompts]
    contexts = [RequestContext(f"r{at}", history, {}, VOCAB) for at, history in enumerate(histories)]
    states = [dialect.start(context, params) for context in contexts]
    natives = [LogitsProcessorList([case.native()]) for _ in prompts]
    for _ in range(data.draw(st.integers(1, 4))):
        served = data.draw(st.permutations(range(len(prompts))))[: data.draw(st.integers(1, len(prompts)))]
        scores = random_scores(
            data.draw(st.integers(0, 1000)), len(served), with_infinities=case.name.startswith("Inf")
        )
        expected = [
            natives[at](ids_of(histories[at]), row[None].clone()) for at, row in zip(served, scores, strict=True)
        ]
        result = dialect.process([states[at] for at in served], scores)
        assert not dialect.failed
        torch.testing.assert_close(result, torch.cat(expected), rtol=1e-6, atol=1e-6)
        for at in served:
            follow(data, dialect, states[at], histories[at])


def follow(data: st.DataObject, dialect: Any, state: Any, history: History) -> None:
    """Append random ids; some are drafted and cut back first."""
    drafted = data.draw(st.integers(0, 2))
    for token_id in data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=drafted, max_size=drafted)):
        history.append(token_id)
    if drafted:
        history.rewind(len(history) - drafted)
        try:
            dialect.rewind(state)
        except StateLost:
            assert type(state.processor).__name__ == "SynthIDTextWatermarkLogitsProcessor"
    history.append(data.draw(st.integers(0, VOCAB - 1)))


def ids_of(history: History) -> torch.Tensor:
    return torch.tensor([history.token_ids.tolist()])


def random_scores(seed: int, rows: int, *, with_infinities: bool) -> torch.Tensor:
    scores = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    if with_infinities:
        scores[:, 1], scores[:, 2], scores[:, 3] = torch.inf, -torch.inf, torch.nan
    return scores


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("ClassifierFreeGuidanceLogitsProcessor", {"guidance_scale": 2.0}),
        ("DiaClassifierFreeGuidanceLogitsProcessor", {"guidance_scale": 2.0}),
        ("DiaEOSChannelFilterLogitsProcessor", {"num_channels": 2, "eos_token_id": 2}),
        ("DiaEOSDelayPatternLogitsProcessor", {"delay_pattern": [0, 1], "eos_token_id": 2, "max_generation_len": 9}),
    ],
)
def test_a_processor_that_cannot_process_single_rows_fails(name: str, params: dict[str, Any]) -> None:
    assert name in NOT_OF_A_ROW
    dialect = make_dialect(getattr(transformers.generation.logits_process, name), "its name", shipped=True)
    state = dialect.start(RequestContext("r", History([1]), {}, VOCAB), params)
    dialect.process([state], random_scores(1, 1, with_infinities=False))
    assert list(dialect.failed) == [0]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("case", [case for case in CASES if "Watermark" not in case.name], ids=lambda case: case.name)
def test_rows_on_a_gpu(case: Case) -> None:
    """Rows on a GPU equal transformers' on the CPU. Watermarks are excluded: their random numbers differ on a GPU."""
    processor, params = case.shipped
    dialect = make_dialect(processor, "its name", shipped=True)
    histories = [History([3, 1]), History([1, 2]), History([7])]
    states = [dialect.start(RequestContext("r", one, {}, VOCAB, device="cuda"), params) for one in histories]
    natives = [case.native() for _ in histories]
    for step in range(3):
        scores = random_scores(step, 3, with_infinities=case.name.startswith("Inf"))
        rows = zip(natives, histories, scores, strict=True)
        expected = [native(ids_of(history), row[None].clone()) for native, history, row in rows]
        result = dialect.process(states, scores.cuda())
        assert not dialect.failed
        torch.testing.assert_close(result.cpu(), torch.cat(expected), rtol=1e-4, atol=1e-4)
        for history in histories:
            history.append(step)
