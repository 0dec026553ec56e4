"""The model of a story: its texts, and logits that are the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from logitport.errors import InvalidArgument
from logitport_testing import StoryModel, ToyModel, simulate
from tests.testing.models.story_tokenizer import files


def test_a_text_and_its_ids() -> None:
    model = StoryModel()
    ids = model.encode("Once upon a time there was a zebra.\n")
    assert model.decode(ids) == "Once upon a time there was a zebra.\n"
    assert [model.token_text(one) for one in ids[:4]] == ["Once", " upon", " a", " time"]
    assert "".join(model.token_text(one) for one in ids[7:13]) == " zebra"
    assert max(ids) < model.vocab_size
    assert model.encode("ü✓") == [0, 0]
    assert model.token_text(0) == "\N{REPLACEMENT CHARACTER}"


def test_the_model_is_the_same_everywhere() -> None:
    model = StoryModel()
    logits = model(model.encode("the old"))
    assert (logits.shape, logits.dtype, np.isfinite(logits).all()) == ((202,), np.float32, True)
    assert model([]).shape == model([3]).shape == (202,)
    assert model.vocab_size == 202
    assert [model.token_text(one) for one in np.argsort(-logits, kind="stable")[:3]] == [" king", " and", ","]
    assert logits[:3].tolist() == [np.float32(one) for one in (-11.5299, -6.9148, -6.9148)]


def test_the_texts_are_in_the_result() -> None:
    model = StoryModel()
    result = simulate([], model, model.encode("Once"), 3)
    assert "".join(result.texts[one] for one in result.output_token_ids) == " upon a time"
    assert simulate([], model, [1], 1, token_text=lambda one: f"<{one}>").texts[1] == "<1>"


def test_the_files_of_the_tokenizer_are_current() -> None:
    """If this fails, run `python -m tests.testing.models.story_tokenizer`."""
    model = StoryModel()
    for name, text in files(model).items():
        assert (model.tokenizer_path / name).read_text("utf-8") == text


@pytest.mark.parametrize(
    "text",
    ["Once upon a time there was a zebra.\n", "ü✓ x", "a  b7 42 king, \tB", 'The king said: "x"', "  ", "\n\n", ""],
)
def test_the_tokenizer_has_the_same_ids(text: str) -> None:
    model = StoryModel()
    tokenizer = Tokenizer.from_file(str(model.tokenizer_path / "tokenizer.json"))
    assert tokenizer.encode(text).ids == model.encode(text)
    assert tokenizer.decode(model.encode(text)) == model.decode(model.encode(text))


def test_processors_have_its_tokenizer() -> None:
    model = StoryModel()
    result = simulate([("grammar", {"choice": [" was here", " came"]})], model, model.encode("The king"), 9)
    assert model.decode(result.output_token_ids) in (" was here<|end|>", " came<|end|>")
    assert result.ended == "eos"
    prefixed = simulate([("force_prefix", {"force_prefix": " slept and"})], model, model.encode("The fox"), 2)
    assert model.decode(prefixed.output_token_ids) == " slept and"
    with pytest.raises(InvalidArgument, match="the argument `tokenizer` that of `simulate`"):
        simulate([("grammar", {"choice": ["a"]})], ToyModel(64), [1], 1)
