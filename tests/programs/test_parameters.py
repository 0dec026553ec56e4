"""Parameters of a request against the declarations of a program."""

from __future__ import annotations

import math
from typing import Any

import pytest

from logitport.errors import InvalidArgument
from logitport_programs.parameters import MAX_TOKEN_ID, check_params
from logitport_programs.program import Parameter, Program
from logitport_programs.types import Element

PROGRAM = Program(
    "test",
    (),
    (
        Parameter("f", Element.FLOAT32, 0.5, 0.0, 2.0),
        Parameter("i", Element.INT64, None, -5, 50),
        Parameter("b", Element.BOOL, 1.0, 0, 1),
        Parameter("free", Element.FLOAT32, 0.0),
    ),
)


def test_defaults_and_keys_of_engines() -> None:
    assert check_params(PROGRAM.parameters, {"i": 3, "__req__": object()}) == (0.5, 3, True, 0.0)


IDS = (Parameter("ids", Element.INT64, 0.0, 0.0, float(MAX_TOKEN_ID), 3),)


def test_lists_of_ids() -> None:
    assert check_params(IDS, {"ids": [5, 5, MAX_TOKEN_ID]}) == ((5, 5, MAX_TOKEN_ID),)
    assert check_params(IDS, {"ids": ()}) == check_params(IDS, {}) == ((),)


@pytest.mark.parametrize("ids", [[1, 2, 3, 4], [-1], [MAX_TOKEN_ID + 1], [1.0], [True], 1, "123", {1: 2}, None])
def test_wrong_lists(ids: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a list of at most 3 token ids, integers in \[0, 2147483647\]"):
        check_params(IDS, {"ids": ids})


def test_values_have_the_declared_type() -> None:
    checked = check_params(PROGRAM.parameters, {"f": 1, "i": -5, "b": False, "free": -math.inf})
    assert checked == (1.0, -5, False, -math.inf)
    assert [type(value) for value in checked] == [float, int, bool, float]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, r"'i' is missing; set it to an integer in \[-5, 50\]"),
        ({"i": 1, "x": 1}, r"no parameter 'x'; set only: f, i, b, free"),
        ({"i": 1, "phase": "answer"}, "phase is only for processors that read no logits: leave it out"),
        ({"i": 51}, r"'i' is 51; it must be an integer in \[-5, 50\]"),
        ({"i": 1.0}, "'i' is 1.0"),
        ({"i": True}, "'i' is True"),
        ({"i": 1 << 70}, "'i' is 1180591620717411303424"),
        ({"i": 1, "f": 2.5}, r"'f' is 2.5; it must be a number in \[0, 2\]"),
        ({"i": 1, "f": math.nan}, "'f' is nan"),
        ({"i": 1, "f": "1"}, "'f' is '1'"),
        ({"i": 1, "f": None}, "'f' is None"),
        ({"i": 1, "b": 1}, "'b' is 1; it must be a bool"),
        ({"i": 1, "free": 1e39}, r"'free' is 1e\+39"),
        ({"i": 1, "free": 10**400}, "'free' is 1000"),
    ],
)
def test_wrong_values(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_params(PROGRAM.parameters, params)
