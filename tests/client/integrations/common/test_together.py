"""Changes of an engine's batch are sent with the step that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.session.transports.local import LocalTransport
from tests.engine_batches import EngineRows, FirstRunnerRows, SchedulerRows, SecondRunnerRows

if TYPE_CHECKING:
    from logitport import Client

VOCAB = 64
CHAIN = [["disallowed_tokens", {"token_ids": [5]}]]


@pytest.mark.parametrize(
    ("engine", "writes"),
    # The second runner of vLLM sends changes before the forward pass, and its step after it.
    [(FirstRunnerRows, 1), (SchedulerRows, 1), (SecondRunnerRows, 2)],
)
def test_a_step_with_changes_is_one_write(
    client: Client, monkeypatch: pytest.MonkeyPatch, engine: type[EngineRows], writes: int
) -> None:
    written: list[int] = []
    write = LocalTransport._write

    def noted(transport: LocalTransport, frames: bytes) -> None:
        written.append(len(frames))
        write(transport, frames)

    monkeypatch.setattr(LocalTransport, "_write", noted)
    with engine(client, CHAIN, 3, VOCAB) as rows:
        for step in range(4):
            if step:
                rows.replace(step % 3)
            rows.append([7, 8, 9])
            written.clear()
            logits: Any = torch.zeros(3, VOCAB)
            rows.step(logits)
            assert torch.isinf(logits[:, 5]).all()
            assert len(written) == writes or not step
