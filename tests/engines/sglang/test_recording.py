"""SGLang records through the environment, and the recording replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.sglang import RemoteLogitProcessor
from tests.engines import recordings
from tests.engines.sglang.conftest import GUARDED
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer

LENGTH = 16
PROMPTS = [[20, 30, 40], [21, 31, 41, 51, 61], [22]]
REMOTE = RemoteLogitProcessor.to_str()


def test_a_recording_replays(sglang: Callable[..., Any], server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "engine.lprec"
    with sglang(GUARDED, LOGITPORT_TARGET=server.target, **recordings.variables(path)) as engine:

        def generated(name: str, params: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
            custom = {"logitport": [[name, params]]}
            return [(one, engine.generate(one, REMOTE, custom, max_new_tokens=LENGTH)) for one in PROMPTS]

        edited = generated(*recordings.EDITS)
        processor, params = recordings.READS
        read = generated(processor.to_str(), params)
        # The processes are killed, and a killed engine loses the last moments.
        wait_until(lambda: recordings.steps(path) >= LENGTH * len([*edited, *read]))
    recordings.check(path, edited, read)
