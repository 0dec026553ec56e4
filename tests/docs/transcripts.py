"""Pages with transcripts: text blocks of commands after `$ `, each followed by its output.

`...` in the output stands for any text.
"""

from __future__ import annotations

import doctest
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    content: str


def sections(page: str) -> dict[str, str]:
    """The text of each section of the second level, by its title."""
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks(section: str, language: str | None = None) -> list[Block]:
    """The blocks of code of a section, in their order; only those of one language, if it is given."""
    found = [Block(*match) for match in _BLOCK.findall(section)]
    return [block for block in found if language in (None, block.language)]


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a transcript, with their expected output; no command for another text."""
    for part in re.split(r"^\$ ", block.content, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def check_transcript(block: Block, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the commands of a block in a shell, and compare what they print, on both streams, with the page.

    The commands of a block share a shell, so that an `export` is seen by those after it.
    """
    mark = "end of command"
    script = "".join(f"{command}\necho {mark}\n" for command, _ in commands(block))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    *printed, rest = done.stdout.split(f"{mark}\n")
    expected = list(commands(block))
    assert len(printed) == len(expected), f"the shell has ended early:\n{rest}"
    for (command, wanted), got in zip(expected, printed, strict=True):
        if not doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS):
            raise AssertionError(f"$ {command}\nthe page has:\n{wanted}\nit printed:\n{got}")
