"""The line and the document with the addresses of servers."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from logitport_server.config import StartupError
from logitport_server.transports.readiness import report

if TYPE_CHECKING:
    from pathlib import Path


def test_the_line_and_the_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = tmp_path / "targets.json"
    document.write_text("old")
    report(["a:1", "b:2"], document)
    assert capsys.readouterr().out == "logitport listening on a:1,b:2\n"
    assert json.loads(document.read_text()) == [{"targets": ["a:1", "b:2"], "labels": {}}]
    assert stat.S_IMODE(document.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [document]


def test_a_document_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for document in (tmp_path, tmp_path / "no" / "targets.json"):
        with pytest.raises(StartupError, match=r"--targets-file .* cannot be written: [A-Z][a-z ]+$"):
            report(["a:1"], document)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
