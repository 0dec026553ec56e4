"""The processors in examples/processors: each does what its recipe says, also on other cases."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tomlkit

from logitport import InvalidArgument
from logitport.integrations.common.chains import chain_of
from logitport_play.forms import form_of
from logitport_play.watched_files import Files
from logitport_programs.capturing import capture
from logitport_testing import StoryModel, ToyModel, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_testing import Simulation

FOLDER = Path(__file__).parents[2] / "examples" / "processors"
VOCAB_SIZE = 64


@pytest.fixture(autouse=True)
def _beside_the_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files import each other, as scripts of one folder do."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (FOLDER / f"{name}.py").exists():
            del sys.modules[name]


def of_file(name: str, processor: str) -> Any:
    return getattr(importlib.import_module(name), processor)


def run(processor: Any, params: dict[str, Any] | None = None, steps: int = 8, **options: Any) -> Simulation:
    return simulate([(processor, params or {})], ToyModel(VOCAB_SIZE), [1, 2], steps, **options)


def forced(result: Simulation) -> list[int | None]:
    return [step.processors[0].forced for step in result.steps]


def test_bias_ids() -> None:
    bias = of_file("bias_ids", "BiasIds")
    biased = [step.processors[0].biased.tolist() for step in run(bias, {"ids": [3, 4], "first": 2, "last": 3}).steps]
    assert biased == [[], [], [3, 4], [3, 4], [], [], [], []]
    for wrong in ({}, {"ids": [3], "bias": 101}, {"ids": [3], "first": 3, "last": 2}, {"ids": [3], "more": 1}):
        with pytest.raises(InvalidArgument):
            run(bias, wrong)


@pytest.mark.parametrize("version", ["end_sentence", "end_sentence_v2"])
def test_end_sentence(version: str) -> None:
    end = of_file(version, "EndSentence")
    output = [5, 5, 3, 5, 5, 5, 5, 5]  # 3 is the period
    result = run(end, {"max_ids": 3, "period": 3}, output=output)
    assert forced(result) == [None, None, None, None, None, None, 3, 3]
    with pytest.raises(InvalidArgument, match="max_ids"):
        run(end, {"period": 3})


def test_the_second_version_raises_the_period() -> None:
    result = run(of_file("end_sentence_v2", "EndSentence"), {"max_ids": 4, "period": 3, "slope": 2.0}, output=[5] * 8)
    raised = [step.processors[0].bias.tolist() for step in result.steps[:4]]
    assert raised == [[], *([pytest.approx(value, abs=1e-5)] for value in (2, 4, 6))]


@pytest.mark.slow
def test_min_p() -> None:
    min_p = of_file("min_p", "MinP")
    (record,) = run(min_p, {"min_p": 0.5}, steps=1, keep_logits=True).steps
    assert record.raw_logits is not None
    probabilities = np.exp(record.raw_logits - record.raw_logits.max())
    assert record.processors[0].denied.tolist() == np.flatnonzero(probabilities < 0.5).tolist()
    assert capture(min_p).name == "MinP"


def test_from_sglang() -> None:
    processor = of_file("from_sglang", "ForceAt")
    for one in (processor, processor.to_str()):
        assert forced(run(one, {"token_id": 7, "at": 2}, steps=4)) == [None, None, 7, None]


def test_rare_words() -> None:
    processor = of_file("rare_words", "RareWords")
    unigram = StoryModel()([])
    for one in (processor, processor.to_str()):
        (step,) = simulate([(one, {})], StoryModel(), [], 1, keep_logits=True).steps
        assert step.raw_logits is not None
        assert step.final_logits is not None
        np.testing.assert_allclose(step.final_logits - step.raw_logits, -0.6 * unigram, atol=1e-5)


def test_deny_text() -> None:
    processor, model = of_file("deny_text", "DenyText"), StoryModel()
    (step,) = simulate([(processor, {"text": "fo"})], model, steps=1).steps
    with_text = [one for one in range(model.vocab_size) if "fo" in model.token_text(one)]
    assert len(with_text) > 2
    assert step.processors[0].denied.tolist() == with_text
    for wrong in ({}, {"text": ""}, {"text": 3}):
        with pytest.raises(InvalidArgument, match="set text"):
            simulate([(processor, wrong)], model, steps=1)


def test_requests_to_engines() -> None:
    module = sys.modules[of_file("ask_engine", "for_vllm").__module__]
    assert chain_of(module.for_vllm(module.CHAIN)["vllm_xargs"]) == [tuple(entry) for entry in module.CHAIN]
    body = module.for_sglang(module.CHAIN)
    assert chain_of(body["custom_params"]) == [tuple(entry) for entry in module.CHAIN]


def test_the_package() -> None:
    project = tomlkit.parse((FOLDER / "pyproject.toml").read_text()).unwrap()
    ((name, value),) = project["project"]["entry-points"]["logitport.processors"].items()
    processor = EntryPoint(name, value, "logitport.processors").load()
    assert processor.__module__ in project["tool"]["setuptools"]["py-modules"]
    assert forced(run(processor, {"max_ids": 1, "period": 3}, steps=2)) == [None, 3]


@pytest.mark.parametrize(
    ("name", "processor"),
    [("bias_ids", "BiasIds"), ("end_sentence", "EndSentence"), ("end_sentence_v2", "EndSentence")],
)
def test_the_page_of_play_has_fields_for_their_parameters(name: str, processor: str) -> None:
    found = Files([FOLDER / f"{name}.py"]).find(f"{name}.py:{processor}")
    assert [field.name for field in form_of(name, "it", found).fields or ()] == list(found.params)
