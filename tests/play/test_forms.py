"""The fields of forms: those of built-ins are what these accept."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from logitport import Bool, EditProcessor, Float, Int, TensorProcessor, TokenIds
from logitport.errors import LogitportError
from logitport_builtins import BUILTINS
from logitport_play.builtin_forms import BUILTIN_FIELDS, STARTERS, Field
from logitport_play.forms import builtin_forms, form_of
from logitport_testing import StoryModel, simulate

FORMS = {form.name: form for form in builtin_forms()}
STORY = StoryModel()


def test_every_built_in_has_a_form() -> None:
    assert set(FORMS) == set(BUILTINS) == set(STARTERS)
    assert set(BUILTIN_FIELDS) <= set(BUILTINS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_the_first_parameters_are_accepted(name: str) -> None:
    simulate([(name, dict(STARTERS[name]))], STORY, [3], 2)


@pytest.mark.parametrize("name", sorted(BUILTIN_FIELDS))
def test_the_fields_are_all_parameters(name: str) -> None:
    """Each field is known, and no other one."""
    fields = BUILTIN_FIELDS[name]
    examples: dict[str, Any] = {"token_ids": [5], "integer": 3, "number": 0.5}
    params = {
        one.name: max(examples[one.kind], one.minimum or 0) if one.minimum else examples[one.kind] for one in fields
    }
    simulate([(name, params)], STORY, [3], 1)
    with pytest.raises(LogitportError) as caught:
        simulate([(name, {"unknown": 1})], STORY, [3], 1)
    known = str(caught.value).partition("known parameters: ")[2].split(", ")
    assert set(known) - {"vocab_size"} == {one.name for one in fields}


@pytest.mark.parametrize("name", sorted(BUILTIN_FIELDS))
def test_the_limits_are_those_of_the_parameters(name: str) -> None:
    for field in BUILTIN_FIELDS[name]:
        for limit, sign in ((field.minimum, -1), (field.maximum, 1)):
            if limit is not None:
                params = {**STARTERS[name], field.name: limit + sign}
                with pytest.raises(LogitportError, match=field.name):
                    simulate([(name, params)], STORY, [3], 1)


@pytest.mark.parametrize("name", sorted(BUILTIN_FIELDS))
def test_required_fields_are_required(name: str) -> None:
    required = {one.name for one in BUILTIN_FIELDS[name] if one.required}
    assert required <= set(STARTERS[name])
    for missing in required:
        params = {key: value for key, value in STARTERS[name].items() if key != missing}
        with pytest.raises(LogitportError, match=missing):
            simulate([(name, params)], STORY, [3], 1)


def test_the_fields_of_a_program() -> None:
    assert FORMS["top_p"].fields == (Field("top_p", "number", None, pytest.approx(0, abs=1e-6), 1.0, required=True),)
    assert FORMS["top_p"].group == "built-in programs"
    assert FORMS["logit_bias"].fields is None


class Declares(EditProcessor):
    """What it does.

    More of it.
    """

    params = {
        "bias": Annotated[float, Float(default=0.5, ge=-1), "how much"],
        "count": Int(ge=1, le=9),
        "on": Bool(default=True),
        "ids": TokenIds(default=()),
    }

    def edit(self, request: Any, edits: Any) -> None: ...


class Captured(TensorProcessor):
    params = {"alpha": Float(gt=0)}

    def process(self, logits: Any, params: Any, history: Any) -> Any:
        return logits


class Constructed:
    def __init__(
        self, penalty: Annotated[float, Float(ge=0, le=2), "how much"] = 1.0, *, words: int = 3, on=True
    ) -> None: ...

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


def function(input_ids: Any, scores: Any, strength: Annotated[float, "how much"]) -> Any:
    return scores


def unclear(input_ids: Any, scores: Any, table: dict[str, int]) -> Any:
    return scores


def test_declared_parameters() -> None:
    form = form_of("my.py:Declares", "my.py", Declares)
    assert form.summary == "What it does."
    assert form.fields == (
        Field("bias", "number", 0.5, -1.0, help="how much"),
        Field("count", "integer", None, 1.0, 9.0, required=True),
        Field("on", "boolean", True),
        Field("ids", "token_ids", []),
    )
    assert form.params == {"bias": 0.5, "on": True, "ids": []}
    (alpha,) = form_of("x", "", Captured).fields or ()
    assert (alpha.kind, alpha.required) == ("number", True)
    assert alpha.minimum is not None
    assert alpha.minimum > 0


def test_annotated_arguments() -> None:
    assert form_of("x", "", Constructed).fields == (
        Field("penalty", "number", 1.0, 0.0, 2.0, help="how much"),
        Field("words", "integer", 3),
        Field("on", "boolean", True),
    )
    assert form_of("x", "", function).fields == (Field("strength", "number", required=True, help="how much"),)
    assert form_of("x", "", Constructed(2.0)).fields == ()


@pytest.mark.parametrize("processor", [unclear, type("Plain", (EditProcessor,), {"edit": lambda *_: None})])
def test_other_parameters_are_json(processor: Any) -> None:
    form = form_of("x", "", processor)
    assert (form.fields, form.params) == (None, {})
