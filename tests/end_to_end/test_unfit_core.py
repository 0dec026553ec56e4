"""A server beside a compiled core of another version: it runs in pure Python, and its log stays what it was to be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from logitport import Client, Request
from logitport.core import compiled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.conftest import RunningServer


def test_a_server_logs_that_its_core_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., RunningServer]
) -> None:
    package = tmp_path / "logitport_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_core.py").write_text("INTERFACE = -1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = start_server("--log-format", "json")
    with Client(server.target) as client, client.session(vocab_size=8, dtype=torch.float32) as session:
        request = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
        logits = torch.zeros(1, 8)
        session.step({request: []}).apply(logits)
    assert logits.isneginf().nonzero().tolist() == [[0, 3]]
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (warning,) = [line for line in lines if line["logger"] == "logitport.core.compiled"]
    assert warning["level"] == "WARNING"
    problem = f"logitport-core has interface -1, and this logitport needs {compiled.INTERFACE}"
    assert warning["message"].startswith(f"{problem}; logitport runs in pure Python.")
    assert any(f"core: pure Python: {problem};" in line["message"] for line in lines)
