"""Installed processors are usable by name, without the flag. A client cannot replace them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Client, InvalidArgument, PayloadError, Request
from tests.conftest import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer

SOURCE = """
from logitport import CustomLogitProcessor, EditProcessor

class AddOne(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits + 1

class Ban(EditProcessor):
    def edit(self, request, edits):
        edits.deny(request.params["ids"])
"""
VOCAB = 8


@pytest.fixture
def installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_team").mkdir()
    (tmp_path / "our_team" / "processors.py").write_text(SOURCE)
    info = tmp_path / "our_team-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-team\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[logitport.processors]\nban = our_team.processors:Ban\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("installed_package")
def test_by_path_and_by_entry_point(start_server: Callable[..., RunningServer]) -> None:
    running = start_server("--logits-processors", "our_team.processors:AddOne")
    chain = [("our_team.processors:AddOne", {}), ("ban", {"ids": [2]}), ("disallowed_tokens", {"token_ids": [3]})]
    expected = torch.ones(1, VOCAB)
    expected[0, [2, 3]] = -torch.inf
    with Client(running.target) as client:
        assert {"our_team.processors:AddOne", "ban"} < {name for ref in client.processors() for name in ref.names}
        assert client.processor("ban").builtin
        with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
            handle = session.add(Request([1], processors=chain))
            logits = torch.zeros(1, VOCAB)
            result = session.step({handle: []}).apply(logits)
        assert torch.equal(logits, expected)
        assert result.rows_applied == {"our_team.processors:AddOne": 1, "ban": 1, "disallowed_tokens": 1}
        with pytest.raises(InvalidArgument, match="cannot be deleted"):
            client.delete("ban")

        class Shipped:
            def __call__(self, logits: torch.Tensor, custom_param_list: object) -> torch.Tensor:
                return logits

        with pytest.raises(PayloadError):
            client.register(Shipped)


def test_an_unknown_path_ends_the_start() -> None:
    options = ["--listen", "127.0.0.1:0", "--logits-processors", "our_team.nothing:AddOne"]
    done = subprocess.run([COMMAND, "serve", *options], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("logitport: --logits-processors our_team.nothing:AddOne: Module")
