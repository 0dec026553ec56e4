"""docs/dialects.md matches the code."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from logitport import History, InvalidArgument, dialects
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.vllm import v2
from tests.docs.pages import blocks, read, section
from tests.engine_stubs import importable_stubs

PAGE = read("docs/dialects.md")
INF = float("inf")


def test_every_dialect_is_listed() -> None:
    table = PAGE[PAGE.index("| dialect | written as |") :].partition("\n\n")[0]
    assert re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE) == list(dialects.DIALECTS)


def process(dialect: Any, params: dict[str, Any], output: list[int]) -> list[float]:
    dialect.validate(params, {})
    state = dialect.start(RequestContext("r", History([1], output), {}, 4), params)
    row: list[float] = dialect.process([state], torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist()[0]
    return row


def test_the_processor_of_batches() -> None:
    with importable_stubs():
        made: dict[str, Any] = {"__name__": "here"}
        exec(blocks(section(PAGE, "vLLM: batches (V1)"))[0], made)
        assert dialects.recognise(made["ForceToken"])[1] == dialects.VLLM_V1
        dialect = make_dialect(made["ForceToken"], "its name", shipped=True)
        assert process(dialect, {"token_id": 2}, []) == [-INF, -INF, 3, -INF]
        with pytest.raises(InvalidArgument, match="token_id must be an id"):
            dialect.validate({}, {})


def test_the_function_of_a_row() -> None:
    made: dict[str, Any] = {}
    exec(blocks(section(PAGE, "vLLM: single requests"))[0].partition("\n\n\n")[0], made)
    dialect = make_dialect(made["never_twice_in_a_row"], "its name", shipped=True)
    assert process(dialect, {}, [3, 1]) == [1, -INF, 3, 4]


def test_the_processor_of_slots() -> None:
    with importable_stubs():
        made: dict[str, Any] = {"__name__": "here"}
        exec(blocks(section(PAGE, "vLLM: slots (V2)"))[0], made)
        assert dialects.recognise(made["BanLast"])[1] == dialects.VLLM_V2
        banned = process(make_dialect(made["BanLast"], "its name", shipped=True), {"ban": True}, [3, 2])
        assert banned == [1, 2, -INF, 4]
        assert process(make_dialect(made["BanLast"], "its name", shipped=True), {}, [3, 2]) == [1, 2, 3, 4]
    assert f"({v2._INITIAL_SLOTS} and {v2._INITIAL_LENGTH} ids at first)" in section(PAGE, "vLLM: slots (V2)")


def test_the_processor_for_dynamo() -> None:
    with importable_stubs():
        made: dict[str, Any] = {"__name__": "here"}
        exec(blocks(section(PAGE, "NVIDIA Dynamo"))[0], made)
        assert dialects.recognise(made["BansLast"])[1] == dialects.DYNAMO
        assert process(make_dialect(made["BansLast"], "its name", shipped=True), {"penalty": 0.5}, [3, 1]) == [
            1,
            1.5,
            3,
            4,
        ]


def test_the_chain_of_transformers() -> None:
    made: dict[str, Any] = {"__name__": "here"}
    exec(blocks(section(PAGE, "transformers"))[0], made)
    rows = [
        process(make_dialect(shipped, "its name", shipped=True), params, [3, 1]) for shipped, params in made["chain"]
    ]
    assert rows == [[1, -INF, 3, 4], [1, 2, -INF, -INF], [1, 2, -INF, 4], [1, -INF, 3, 4]]
