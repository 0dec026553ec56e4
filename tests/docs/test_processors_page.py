"""docs/processors.md: its code is that of the files in examples/processors, and its commands print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport_play.command import Play
from logitport_server.cli.root import COMMANDS
from logitport_server.config import ServerConfig
from tests.docs.pages import ROOT, read
from tests.docs.transcripts import Block, blocks, check_transcript, commands, sections

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer

FILES = ROOT / "examples" / "processors"
PAGE = read("docs/processors.md")
RECIPES = {title: section for title, section in sections(PAGE).items() if title[0].isdigit()}
every_recipe = pytest.mark.parametrize("title", RECIPES)


def files(section: str) -> list[str]:
    return re.findall(r"\]\(\.\./examples/processors/([\w.]+)\)", section)


def test_each_file_belongs_to_a_recipe() -> None:
    named = {name for section in RECIPES.values() for name in files(section)}
    assert named == {path.name for path in FILES.iterdir() if path.is_file()}


@every_recipe
def test_code_is_quoted_from_the_files(title: str) -> None:
    section = RECIPES[title]
    quoted = [block.content for block in blocks(section) if block.language in ("python", "toml")]
    texts = [(FILES / name).read_text() for name in files(section)]
    assert quoted
    for code in quoted:
        assert any(code in text for text in texts), code


def test_the_server_of_the_recipes() -> None:
    """It has the options of the fixture `server`, which stands for it below."""
    (serve,) = [
        block for block in blocks(PAGE[: PAGE.index("## 1.")], "sh") if block.content.startswith("logitport serve")
    ]
    assert serve.content == "logitport serve --enable-custom-logit-processor\n"


@every_recipe
def test_commands_exist(title: str) -> None:
    lines = [line for block in blocks(RECIPES[title], "sh") for line in block.content.splitlines()]
    lines += [command for block in blocks(RECIPES[title], "text") for command, _ in commands(block)]
    assert lines or files(RECIPES[title])
    for line in lines:
        words = shlex.split(line)
        if words[0] == "logitport":
            assert words[1] in COMMANDS, line
        if words[:2] == ["logitport", "play"]:  # the only command that is not run below
            assert {word.removeprefix("--") for word in words if word.startswith("--")} <= set(Play.model_fields), line
            assert all((ROOT / word).is_file() for word in words if word.endswith(".py")), line


@pytest.mark.slow
@every_recipe
def test_commands_print_what_the_page_shows(
    title: str,
    server: RunningServer,
    start_server: Callable[..., RunningServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has a free port instead of the default one. A recipe may start another one."""
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    address = ServerConfig().listen.replace("127.0.0.1", "localhost")
    target = server.target
    for block in blocks(RECIPES[title]):
        if block.language == "sh" and block.content.startswith("logitport serve"):
            target = start_server(*shlex.split(block.content)[2:]).target
        elif block.language == "text":
            check_transcript(Block("text", block.content.replace(address, target)), tmp_path, environment)
