"""The model of a story: its texts, and logits that are the same everywhere."""

from __future__ import annotations

import numpy as np

from logitport.testing import StoryModel, simulate


def test_a_text_and_its_ids() -> None:
    model = StoryModel()
    ids = model.encode("Once upon a time there was a zebra.\n")
    assert model.decode(ids) == "Once upon a time there was a zebra.\n"
    assert [model.token_text(one) for one in ids[:4]] == ["Once", " upon", " a", " time"]
    assert "".join(model.token_text(one) for one in ids[7:13]) == " zebra"
    assert max(ids) < model.vocab_size


def test_unknown_characters_have_one_id() -> None:
    model = StoryModel()
    assert model.encode("ü✓") == [0, 0]
    assert model.token_text(0) == "\N{REPLACEMENT CHARACTER}"


def test_the_logits_follow_the_story() -> None:
    model = StoryModel()
    logits = model(model.encode("Once upon a"))
    assert model.token_text(int(logits.argmax())) == " time"
    assert logits.shape == (model.vocab_size,)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert model([]).shape == model([3]).shape == (model.vocab_size,)


def test_the_model_is_the_same_everywhere() -> None:
    model = StoryModel()
    logits = model(model.encode("the old"))
    assert model.vocab_size == 201
    assert [model.token_text(one) for one in np.argsort(-logits, kind="stable")[:3]] == [" king", " and", ","]
    assert logits[:3].tolist() == [np.float32(one) for one in (-11.5298, -6.9147, -6.9147)]


def test_the_texts_are_in_the_result() -> None:
    model = StoryModel()
    result = simulate([], model, model.encode("Once"), 3)
    assert "".join(result.texts[one] for one in result.output_token_ids) == " upon a time"
    assert simulate([], model, [1], 1, token_text=lambda one: f"<{one}>").texts[1] == "<1>"
