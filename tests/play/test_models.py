"""Models of the page: the story, and folders of transformers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import InvalidArgument
from logitport_play.export import export_test
from logitport_play.models import PlayModel, from_folder, open_models, story
from logitport_play.runs import ChosenProcessor, RunResult, Runs, RunSpec
from logitport_play.watched_files import Files
from logitport_testing import ToyModel, simulate
from tests.tokenizer_files import write_trained

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_rows_are_cached() -> None:
    calls: list[list[int]] = []

    def model(token_ids: Sequence[int]) -> np.ndarray:
        calls.append([*token_ids])
        return np.zeros(4, np.float32)

    cached = PlayModel("x", model, list, None, "", ("", ""), Path())  # type: ignore[arg-type]
    for ids in ([1], [1, 2], [1]):
        cached(ids)
    assert calls == [[1], [1, 2]]


def test_the_story() -> None:
    model = story()
    assert [*open_models([])] == ["story"]
    assert model.token_text is not None
    assert "".join(map(model.token_text, model.encode(model.prompt))) == "Once upon a time"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def with_tokenizer(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder with a tokenizer."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    write_trained(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    return tmp_path


def grammar(model: str, prompt: str, steps: int = 30) -> RunSpec:
    return RunSpec("a", model, prompt, [ChosenProcessor("grammar", {"regex": r" the (old|young) [a-z]+\."})], steps)


def finished(runs: Runs, spec: RunSpec) -> RunResult:
    result = runs.run(spec)
    while len(result.simulation.steps) < spec.steps and not result.ended:
        result = runs.run(spec)
    return result


@pytest.mark.slow
def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    model = from_folder(folder)
    assert (model.token_text, model.eos_token_ids, model.encode("1, 2 3")) == (None, (2,), [1, 2, 3])
    assert model([1, 2]).shape == (320,)
    for prompt in ("one", "1 -2", "320", "9" * 40):
        with pytest.raises(InvalidArgument):
            model.encode(prompt)
    assert model.expression[0] == f"AutoModelForCausalLM.from_pretrained({str(folder.resolve())!r})"


@pytest.mark.slow
def test_a_folder_with_a_tokenizer(with_tokenizer: Path) -> None:
    model = from_folder(with_tokenizer)
    assert model.token_text is not None
    assert "".join(map(model.token_text, model.encode("ab a"))) == "ab a"
    assert model.token_text(319) == "<319>"
    runs = Runs(open_models([with_tokenizer]), Files([]))
    first = finished(runs, grammar(with_tokenizer.name, "ab", 1)).simulation
    assert first.steps[0].final.allowed < 4
    assert "".join(first.texts[one] for one in first.output_token_ids) in (" ", " t", " th", " the")
    runs.close()


def test_a_run_of_a_folder(folder: Path) -> None:
    runs = Runs(open_models([folder]), Files([]))
    spec = RunSpec("a", folder.name, "1 2 3", [ChosenProcessor("top_k", {"top_k": 5})], 3)
    simulation = finished(runs, spec).simulation
    assert (simulation.prompt_token_ids, simulation.texts) == ((1, 2, 3), {})
    assert "AutoModelForCausalLM" in export_test(spec, runs, Files([]))
    with pytest.raises(InvalidArgument, match="needs a prompt"):
        runs.run(RunSpec("a", folder.name, "", [], 1))
    runs.close()


def test_a_grammar_on_the_story() -> None:
    runs = Runs(open_models([]), Files([]))
    result = finished(runs, grammar("story", "One day"))
    simulation = result.simulation
    assert simulation.ended == "eos"
    text = "".join(simulation.texts[one] for one in simulation.output_token_ids)
    assert re.fullmatch(r" the (old|young) [a-z]+\.<\|end\|>", text)
    assert not any(record.error for step in simulation.steps for record in step.processors)
    other = finished(runs, RunSpec("b", "story", "One day", grammar("", "").chain, 4))
    assert other.simulation.steps[0].processors[0].forced is not None, "the second chain has the tokenizer, too"
    with pytest.raises(InvalidArgument, match="no tokenizer is named"):  # it is no default of other sessions
        simulate([("grammar", {"choice": ["a"]})], ToyModel(300), [1], 1)
    made: dict[str, Any] = {}
    exec(export_test(grammar("story", "One day"), runs, Files([])), made)
    made["test_grammar"]()
    runs.close()


def test_a_grammar_on_a_folder_without_a_tokenizer(folder: Path) -> None:
    runs = Runs(open_models([folder]), Files([]))
    (step,) = finished(runs, grammar(folder.name, "1 2", 1)).simulation.steps
    error = step.processors[0].error
    assert f"{folder.name}/tokenizer.json" in error
    assert "give a tokenizer.json of the Hugging Face tokenizers library" in error
    assert "Traceback" not in error
    runs.close()


def test_names_are_different(folder: Path) -> None:
    assert [*open_models([folder, folder])] == [folder.name, f"{folder.name}'", "story"]


def test_a_folder_that_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no such folder"):
        from_folder(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="it has no causal model"):
        from_folder(tmp_path)
