"""docs/first-sampler.md: its files are written, and its commands run, in the order of the page."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport.integrations.common.chains import chain_of
from logitport_server.config import ServerConfig
from tests.docs.pages import read
from tests.docs.transcripts import Block, blocks, check_transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer

PAGE = read("docs/first-sampler.md")
BLOCKS = blocks(PAGE)


def test_the_other_commands() -> None:
    """Those that start an engine or a page are not run below."""
    lines = [line for block in BLOCKS if block.language == "sh" for line in block.content.splitlines()]
    assert any(shlex.split(line)[:2] == ["logitport", "play"] for line in lines)
    body = re.findall(r"-d '(.*?)'", "\n".join(lines), re.DOTALL)[0]
    assert chain_of(json.loads(body)["vllm_xargs"]) == [("me/gap:v1", {"gap": 1.5})]


@pytest.mark.slow
def test_the_files_and_commands(
    start_server: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that begins with the name of a file is that file; another one replaces the line that it is like."""
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider", "HF_HUB_OFFLINE": "1"}
    address, target, ran = ServerConfig().listen.replace("127.0.0.1", "localhost"), "", 0
    for block in BLOCKS:
        if block.language == "python":
            write(block, tmp_path)
        elif block.language == "sh" and block.content.startswith("logitport serve"):
            target = start_server(*shlex.split(block.content)[2:]).target
        elif block.language == "text":
            check_transcript(Block("text", block.content.replace(address, target)), tmp_path, environment)
            ran += 1
    assert ran == 8


def write(block: Block, folder: Path) -> None:
    named = re.match(r"# (\w+\.py)\n", block.content)
    if named:
        ast.parse(block.content)
        (folder / named[1]).write_text(block.content)
        return
    (line,) = block.content.splitlines()
    file = folder / "gap.py"
    begin = line[: line.index("<")]
    changed = re.sub(rf"^{re.escape(begin)}.*$", lambda _: line, file.read_text(), count=1, flags=re.MULTILINE)
    assert changed != file.read_text()
    file.write_text(changed)
