"""The examples in docs/programs.md run, and its lists match the code."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.integrations.common.chains import chain_of
from logitport.system.variables import OF_THE_SDK
from logitport_programs.capturing.graph import _OPERATORS
from logitport_programs.cost import DEFAULT_LIMIT_MS
from logitport_server.config import ServerConfig
from tests.docs.pages import ROOT, blocks, read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunningServer

PAGE = read("docs/programs.md")


@pytest.mark.slow
@pytest.mark.slow
def test_the_examples(tmp_path: Path, server_without_flag: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "author.py"
    assert ServerConfig().listen in PAGE
    file.write_text("\n".join(blocks(PAGE)).replace(ServerConfig().listen, server_without_flag.target))
    made: dict[str, Any] = {"__name__": "author"}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("logitport.shipping.LIFTS", True)
            exec(compile(file.read_text(), file, "exec"), made)
        made["client"].delete("me/min-p")
    finally:
        made["client"].close()
    assert re.match(r"{'MinP \(sha256:[0-9a-f]{12}\)': 1}\nFalse\n", capsys.readouterr().out)
    assert made["verified"].program.name == "MinP"
    result = made["MinP"]()(torch.tensor([[0.0, 5.0]]), [{"min_p": 0.5}])
    assert result.tolist() == [[float("-inf"), 5.0]]


def test_the_request_over_http() -> None:
    (command,) = [block for block in blocks(PAGE, "sh") if block.startswith("curl")]
    body = json.loads(shlex.split(command)[-1])
    assert chain_of(body["vllm_xargs"]) == [("me/min-p", {"min_p": 0.1})]


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\(\.\./examples/programs/(\w+)\.py\)", PAGE, re.MULTILINE)
    files = {path.stem for path in (ROOT / "examples" / "programs").glob("*.py")}
    assert all(name == file for name, file in listed)
    assert {name for name, _ in listed} == files


def test_the_default_limit() -> None:
    assert f"{DEFAULT_LIMIT_MS:g} ms of one\ncore by default" in PAGE


def test_the_variables() -> None:
    assert set(re.findall(r"LOGITPORT_\w+", PAGE)) <= OF_THE_SDK


def test_the_listed_functions_are_captured() -> None:
    listed = PAGE[PAGE.index("- elementwise:") :].partition("\n\n")[0]
    names = {name.removeprefix("special.") for name in re.findall(r"`([a-z_.0-9]+)`", listed)} - {"_like"}
    known = {name.removeprefix("special_") for name in _OPERATORS}
    assert names <= known, names - known
