"""docs/recording.md: its examples run, and its tables are those of the code."""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport_recording import events, members
from logitport_recording.reading import event_checks, reader, unpacking
from logitport_recording.record_options import VARIABLE, RecordOptions, _read_options
from logitport_server.cli.root import run
from tests.docs.pages import ROOT, blocks, codes, read
from tests.recording.reading.build import began, member, opened, stepped

if TYPE_CHECKING:
    from logitport import Client

PAGE = read("docs/recording.md")


def test_the_examples(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded, fixed = blocks(PAGE, "python")
    listed, summary = blocks(PAGE, "text")
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
    defaults = {name: default for name, default, *_ in codes(PAGE, "| option | default |")}
    assert list(defaults) == [field.name for field in dataclasses.fields(RecordOptions)]
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
    assert [size for size, _ in codes(PAGE, "| bytes | content |")] == ["16", "4", "the rest"]
    (prefix,) = re.findall(r"\| 16 \| `([0-9a-f ]+)` \|", PAGE)
    assert bytes.fromhex(prefix) == members.PREFIX
    member = members.pack([b"events"])
    assert struct.unpack_from("<I", member, 16) == (len(member),)
    assert struct.unpack("<II", member[-8:]) == (zlib.crc32(b"events"), 6)
    assert (
        f"{members.MAX_MEMBER_BYTES >> 20} MiB of events in a member or {unpacking.MAX_TOTAL_BYTES >> 20} MiB" in PAGE
    )
    assert f"an event of more than {events.MAX_EVENT_BYTES >> 20} MiB" in PAGE
    assert f"more than {event_checks.MAX_VOCAB_SIZE:,} ids" in PAGE
    assert f"An event counts {reader._PARSED_BYTES} times" in PAGE


def test_protoc_reads_a_recording(tmp_path: Path) -> None:
    """The command of the page, with the protoc that comes with grpcio-tools."""
    python = ROOT / ".venv-proto" / "bin" / "python"
    if not python.exists():
        pytest.skip("`make` installs protoc into .venv-proto")
    file = tmp_path / "engine.lprec"
    file.write_bytes(member(opened(64)) + member(began(1, "chat-1", [7]), stepped(1, 0, 1, [5]), session_id=2))
    (command,) = blocks(PAGE, "sh")
    run = command.replace("protoc", f"{python} -m grpc_tools.protoc").replace("engine.lprec", str(file))
    decoded = subprocess.run(["sh", "-c", run], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    assert decoded.stdout.count("events {") == 3
    for text in ("session_id: 2", "vocab_size: 64", 'request_id: "chat-1"', r'new_token_ids: "\005\000\000\000"'):
        assert text in decoded.stdout
