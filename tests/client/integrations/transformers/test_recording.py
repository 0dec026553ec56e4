"""A model of transformers records through the environment, and the recording replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.transformers import RemoteLogitsProcessor
from tests.engines import recordings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    import torch

    from logitport import Client

PAD = 0


def test_a_recording_replays(
    client: Client,
    generate: Callable[..., torch.Tensor],
    prompts: torch.Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "engine.lprec"
    for name, value in recordings.variables(path).items():
        monkeypatch.setenv(name, value)

    def generated(chain: Any) -> list[tuple[list[int], list[int]]]:
        with RemoteLogitsProcessor([chain], pad_token_id=PAD, client=client) as remote:
            outputs = generate(remote).tolist()
        given = [[token_id for token_id in prompt if token_id != PAD] for prompt in prompts.tolist()]
        return [*zip(given, outputs, strict=True)]

    recordings.check(path, generated(recordings.EDITS), generated(recordings.READS))
