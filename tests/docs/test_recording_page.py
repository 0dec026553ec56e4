"""docs/recording.md: its examples run, and its tables are those of the code."""

from __future__ import annotations

import dataclasses
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport.recording import chunks, codec
from logitport.recording.options import VARIABLE, RecordOptions, _read_options
from logitport_server.cli.root import run

if TYPE_CHECKING:
    from logitport import Client

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def first_cells(heading: str) -> list[str]:
    table = PAGE[PAGE.index(heading) :].partition("\n\n")[0].splitlines()[2:]
    return [line.split("|")[1].strip(" `") for line in table]


def test_the_examples(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded, fixed = blocks("python")
    listed, summary = blocks("text")
    exec(recorded, {"__name__": "recording_page", "client": client})
    Path("fixed.py").write_text(fixed)
    with pytest.raises(SystemExit) as ended:
        run(listed.splitlines()[0].split()[2:])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[1:] == listed.splitlines()[2:]
    (command,) = re.findall(r"`logitport (replay engine\.lprec --with [^`]*)`", PAGE)
    with pytest.raises(SystemExit) as ended:
        run(command.split())
    assert ended.value.code == 1
    assert capsys.readouterr().out == summary


def test_the_options() -> None:
    assert first_cells("| option | default |") == [field.name for field in dataclasses.fields(RecordOptions)]
    cells = [line.split("|")[2].strip(" `") for line in PAGE.splitlines() if line.startswith("| `")]
    defaults: dict[str, Any] = dict(zip(first_cells("| option | default |"), cells, strict=False))
    options = RecordOptions("file")
    assert int(defaults["sample_every"]) == options.sample_every
    assert int(defaults["top_k"]) == options.top_k
    assert defaults["max_bytes"] == f"{options.max_bytes >> 20} MiB"
    assert defaults["max_queue_bytes"] == f"{options.max_queue_bytes >> 20} MiB"


def test_the_variable() -> None:
    assert f"the variable `{VARIABLE}`" in PAGE
    (example,) = re.findall('`({"path".*})`', PAGE)
    assert _read_options(example).sample_every == 4


def test_the_format() -> None:
    sizes = [int(cell) for cell in first_cells("| bytes | content |")]
    assert sum(sizes) == len(chunks.pack(1, b"")) - len(zlib.compress(b"", 3)) == 24
    assert struct.unpack_from("<HH", chunks.FILE_HEADER, 8) == (chunks.MAJOR, chunks.MINOR) == (1, 0)
    assert [int(cell) for cell in first_cells("| kind | event |")] == sorted(codec._TYPES)
