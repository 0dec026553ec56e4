"""Declared parameters in `help`."""

from __future__ import annotations

import inspect
import pydoc
from typing import Annotated, Any, ClassVar

import pytest

from logitport import (
    Bool,
    CustomLogitProcessor,
    EditProcessor,
    Float,
    Int,
    InvalidArgument,
    TensorProcessor,
    TokenIds,
    payload,
)
from logitport_builtins import BUILTIN_EDITS, MinP

PARAMS = {
    "bias": Annotated[float, Float(default=1.5, ge=-10, lt=10), "added to the logits"],
    "ids": Annotated[list[int], TokenIds(max_ids=8, default=()), "the ids"],
    "count": Int(gt=0),
    "flag": Annotated[bool, Bool(default=True)],
}
LINES = """
Parameters:
    bias: float, at least -10, below 10, by default 1.5; added to the logits
    ids: list of at most 8 token ids, by default empty; the ids
    count: int, above 0, required
    flag: bool, by default True"""


class Tensors(TensorProcessor):
    """Adds a bias.

    To some ids.
    """

    params: ClassVar = PARAMS

    def process(self, logits: Any, params: Any, history: Any) -> Any:
        return logits


class Edits(EditProcessor):
    params = PARAMS

    def edit(self, request: Any, edits: Any) -> None: ...


class Rows(CustomLogitProcessor):
    """Adds a bias."""

    params = PARAMS

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


def test_help_shows_the_parameters() -> None:
    assert inspect.getdoc(Tensors) == "Adds a bias.\n\nTo some ids.\n" + LINES
    assert inspect.getdoc(Rows) == "Adds a bias.\n" + LINES
    assert inspect.getdoc(Edits) == LINES.strip()
    for cls in (Tensors, Rows, Edits):
        shown = pydoc.plain(pydoc.render_doc(cls))
        assert "|      bias: float, at least -10, below 10, by default 1.5; added to the logits\n" in shown


def test_annotations_become_declarations() -> None:
    for cls in (Tensors, Rows, Edits):
        assert cls.params == {
            "bias": Float(default=1.5, ge=-10, lt=10, description="added to the logits"),
            "ids": TokenIds(max_ids=8, default=(), description="the ids"),
            "count": Int(gt=0),
            "flag": Bool(default=True),
        }
    Tensors.validate_params({"count": 1})
    with pytest.raises(InvalidArgument, match="bias"):
        Tensors.validate_params({"count": 1, "bias": 11})


def test_the_descriptions_are_shipped_as_they_are() -> None:
    loaded: Any = payload.loads(payload.parse(payload.dumps(Edits)))
    assert loaded.params == Edits.params
    assert loaded.__doc__ == Edits.__doc__


def test_a_section_of_the_author_is_kept() -> None:
    class Described(Tensors):
        """Scales.

        Parameters:
            by: the factor.
        """

        params: ClassVar = {"by": Float()}

    assert str(inspect.getdoc(Described)).count("by: ") == 1
    for cls in (MinP, *BUILTIN_EDITS.values()):
        assert str(cls.__doc__).count("Parameters:") == 1


@pytest.mark.parametrize(
    "params", [{}, {"limit": 3}, {"limit": Float(), "other": 3}, {"a": Annotated[float, "b"]}, [1]]
)
def test_params_with_another_meaning_are_left_as_they_are(params: Any) -> None:
    cls = type("Own", (CustomLogitProcessor,), {"params": params, "__call__": Rows.__call__})
    assert cls.params is params
    assert cls.__doc__ is None


def test_another_type_than_that_of_the_declaration() -> None:
    for annotated, message in ((int, "annotate float, not int"), (list[int], r"annotate float, not list\[int\]")):
        with pytest.raises(InvalidArgument, match=message):
            type("Wrong", (Tensors,), {"params": {"x": Annotated[annotated, Float()]}})


def test_the_representation_has_what_was_set() -> None:
    assert repr(Float(default=0.5, ge=0)) == "Float(default=0.5, ge=0)"
    assert repr([Int(), Bool(default=False), TokenIds(8)]) == "[Int(), Bool(default=False), TokenIds(max_ids=8)]"

    def arguments(bias: Annotated[float, Float(ge=0), "help"] = 1.0) -> None: ...

    arguments.__annotations__["bias"] = Annotated[float, Float(ge=0), "help"]
    assert "bias: typing.Annotated[float, Float(ge=0), 'help'] = 1.0" in pydoc.plain(pydoc.render_doc(arguments))
