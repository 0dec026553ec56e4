"""The examples in docs/programs.md run, and its lists match the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from logitport.programs.capture.graph import _OPERATORS
from logitport.programs.verifier import verify

PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()


def test_the_examples(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "author.py"
    file.write_text("\n".join(blocks))
    made: dict[str, Any] = {"__name__": "author"}
    exec(compile(file.read_text(), file, "exec"), made)
    assert verify(made["program"])
    result = made["MinP"]()(torch.tensor([[0.0, 5.0]]), [{"min_p": 0.5}])
    assert result.tolist() == [[float("-inf"), 5.0]]


def test_the_listed_functions_are_captured() -> None:
    listed = PAGE[PAGE.index("- elementwise:") :].partition("\n\n")[0]
    names = {name.removeprefix("special.") for name in re.findall(r"`([a-z_.0-9]+)`", listed)} - {"_like"}
    known = {name.removeprefix("special_") for name in _OPERATORS}
    assert names <= known, names - known
