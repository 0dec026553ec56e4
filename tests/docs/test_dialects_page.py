"""docs/dialects.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from logitport import History, InvalidArgument, dialects
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.dialects.vllm import v2
from tests.engine_stubs import importable_stubs

PAGE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()
INF = float("inf")


def section(title: str) -> str:
    return PAGE[PAGE.index(f"## {title}\n") :].partition("\n## ")[0]


def code(title: str) -> str:
    """The first block of code in a section."""
    (block, *_) = re.findall(r"```python\n(.*?)```", section(title), re.DOTALL)
    return str(block)


def test_every_dialect_is_listed() -> None:
    table = PAGE[PAGE.index("| dialect | written as |") :].partition("\n\n")[0]
    shown = re.findall(r"^\| \[`(\w+)`\]\(([^)]*)\)", table, re.MULTILINE)
    assert [name for name, _ in shown] == list(dialects.DIALECTS)
    for _, link in shown:
        file, _, anchor = link.partition("#")
        page = PAGE if not file else (Path(__file__).parents[2] / "docs" / file).read_text()
        titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def process(dialect: Any, params: dict[str, Any], output: list[int]) -> list[float]:
    dialect.validate(params, {})
    state = dialect.start(RequestContext("r", History([1], output), {}, 4), params)
    row: list[float] = dialect.process([state], torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist()[0]
    return row


def test_the_processor_of_batches() -> None:
    with importable_stubs():
        made: dict[str, Any] = {"__name__": "here"}
        exec(code("vLLM: batches (V1)"), made)
        assert dialects.recognise(made["ForceToken"])[1] == dialects.VLLM_V1
        dialect = make_dialect(made["ForceToken"], "its name", shipped=True)
        assert process(dialect, {"token_id": 2}, []) == [-INF, -INF, 3, -INF]
        with pytest.raises(InvalidArgument, match="token_id must be an id"):
            dialect.validate({}, {})


def test_the_function_of_a_row() -> None:
    made: dict[str, Any] = {}
    exec(code("vLLM: single requests").partition("\n\n\n")[0], made)
    dialect = make_dialect(made["never_twice_in_a_row"], "its name", shipped=True)
    assert process(dialect, {}, [3, 1]) == [1, -INF, 3, 4]


def test_the_processor_of_slots() -> None:
    with importable_stubs():
        made: dict[str, Any] = {"__name__": "here"}
        exec(code("vLLM: slots (V2)"), made)
        assert dialects.recognise(made["BanLast"])[1] == dialects.VLLM_V2
        banned = process(make_dialect(made["BanLast"], "its name", shipped=True), {"ban": True}, [3, 2])
        assert banned == [1, 2, -INF, 4]
        assert process(make_dialect(made["BanLast"], "its name", shipped=True), {}, [3, 2]) == [1, 2, 3, 4]
    for text in (
        f"at first {v2._INITIAL_SLOTS} at most",
        f"({v2._INITIAL_SLOTS} and {v2._INITIAL_LENGTH} ids at first)",
    ):
        assert text in section("vLLM: slots (V2)")


def test_the_processor_for_dynamo() -> None:
    with importable_stubs():
        made: dict[str, Any] = {"__name__": "here"}
        exec(code("NVIDIA Dynamo"), made)
        assert dialects.recognise(made["BansLast"])[1] == dialects.DYNAMO
        assert process(make_dialect(made["BansLast"], "its name", shipped=True), {"penalty": 0.5}, [3, 1]) == [
            1,
            1.5,
            3,
            4,
        ]


def test_the_chain_of_transformers() -> None:
    made: dict[str, Any] = {"__name__": "here"}
    exec(code("transformers"), made)
    rows = [
        process(make_dialect(shipped, "its name", shipped=True), params, [3, 1]) for shipped, params in made["chain"]
    ]
    assert rows == [[1, -INF, 3, 4], [1, 2, -INF, -INF], [1, 2, -INF, 4], [1, -INF, 3, 4]]
