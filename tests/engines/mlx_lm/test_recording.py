"""MLX-LM records through the environment, and the recording replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.mlx_lm import RemoteLogitsProcessor
from tests.engines import recordings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from logitport import Client

LENGTH = 16


def test_a_recording_replays(
    client: Client,
    complete: Callable[..., list[int]],
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "engine.lprec"

    def generated(chain: Any) -> list[tuple[list[int], list[int]]]:
        remote = RemoteLogitsProcessor([chain], client=client)
        # A step follows the last id: MLX-LM computes one id more than it yields.
        outputs = [(prompt, [*complete(prompt, remote, length=LENGTH), -1]) for prompt in prompts[1:4]]
        remote.close()
        return outputs

    complete(prompts[0], RemoteLogitsProcessor([recordings.EDITS], client=client), length=2)
    assert not path.exists(), "nothing is recorded without the variable"
    for name, value in recordings.variables(path).items():
        monkeypatch.setenv(name, value)
    recordings.check(path, generated(recordings.EDITS), generated(recordings.READS))
