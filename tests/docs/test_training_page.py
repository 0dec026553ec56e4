"""docs/training.md: its examples run, and its tables are those of the code."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch

from logitport.training import ChainReplay, Rollout, replay
from logitport.training.engine_sampling import Engine
from tests.docs.pages import blocks, codes, read, rows

if TYPE_CHECKING:
    from pathlib import Path

PAGE = read("docs/training.md")


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "training_page"}
    for block in blocks(PAGE):
        exec(block, names)


def test_the_settings() -> None:
    parameters = inspect.signature(ChainReplay).parameters
    listed = {name: default for name, default, _ in codes(PAGE, "| argument | default |")}
    assert [*listed] == [*parameters]
    assert listed["tile_rows"] == str(parameters["tile_rows"].default)
    assert listed["denied_by_programs"] == parameters["denied_by_programs"].default


def test_the_engines() -> None:
    assert {engine for engine, *_ in codes(PAGE, "| engine | order |")} == {*get_args(Engine)}


def test_the_comparison_with_kept_ids() -> None:
    """Samples from random logits with a penalty, a temperature and top-p, and compares what trainers compute."""
    torch.manual_seed(0)
    width, penalty, temperature, top_p = 1000, 1.1, 0.7, 0.9
    logits = torch.randn(1, 200, width) * 3
    prompt = torch.randint(0, width, (300,)).tolist()
    output: list[int] = []
    found: list[list[float]] = []
    for raw in logits[0]:
        seen = torch.tensor(sorted({*prompt, *output}))
        scores = raw.clone()
        scores[seen] = torch.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        ordered, order = (scores / temperature).sort()
        removed = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        denied = torch.zeros(width, dtype=torch.bool)
        denied[order[removed]] = True
        sampled = (scores / temperature).masked_fill(denied, -torch.inf).log_softmax(-1)
        output.append(int(torch.multinomial(sampled.exp(), 1)))
        cooled = raw / temperature
        trainers = cooled.log_softmax(-1), cooled.masked_fill(denied, -torch.inf).log_softmax(-1)
        found.append([float(each[output[-1]]) for each in (sampled, *trainers)])
    chain = [("repetition_penalty", {"repetition_penalty": penalty})]
    rollout = Rollout(prompt, output, chain, sampling={"temperature": temperature, "top_p": top_p})
    sampled, *trainers = torch.tensor(found).T
    ratios = [(each - sampled).exp() for each in (*trainers, replay(logits, [rollout])[0])]
    outside = [100 * float(((each < 0.9) | (each > 1.1)).float().mean()) for each in ratios]
    listed = [float(share.removesuffix(" %")) for _, share in rows(PAGE, "| the trainer computes |")]
    assert listed == [pytest.approx(share, abs=1.0) for share in outside]
    assert listed[-1] == 0
