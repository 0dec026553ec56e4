"""Checks of a recording for the tests of all engines: histories, and replays with and without a difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from logitport import EditProcessor
from logitport.shipping.calls import unpack_int32
from logitport_recording.reading.event_fields import display_name
from logitport_recording.reading.reader import read_recording
from logitport_recording.record_options import VARIABLE
from logitport_testing.replaying.replacement import Replacement
from logitport_testing.replaying.replay import replay
from tests.shipped_processors import Tilt, TiltByLastId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logitport_recording.reading.reader import RecordedRequest
    from logitport_testing.replaying.replay import Replay

VOCAB_SIZE = 512  # of the models of all engines
# A chain whose edits are recorded, and one whose logits are.
EDITS: tuple[str, dict[str, Any]] = ("no_repeat_ngram", {"ngram_size": 1, "window_size": 12})
READS: tuple[type[TiltByLastId], dict[str, Any]] = (TiltByLastId, {"by": 4.0})


class AllowsLast(EditProcessor):
    """Another version of `EDITS`."""

    def edit(self, request: Any, edits: Any) -> None:
        edits.deny(request.history.token_ids[:-1])


def variables(path: Path) -> dict[str, str]:
    """The environment of an engine that records all logits."""
    options = {"sample_every": 1, "top_k": VOCAB_SIZE}
    return {VARIABLE: json.dumps({"path": str(path), **options})}


def check(
    path: Path, edited: Sequence[tuple[list[int], list[int]]], read: Sequence[tuple[list[int], list[int]]]
) -> None:
    """Check the histories of a recording, and its replays.

    Args:
        path: the file.
        edited: prompt and output of each request with the chain `EDITS`.
        read: those of each request with the chain `READS`.
    """
    recording = read_recording(path)
    requests = [request for session in recording.sessions for request in session.requests]
    by_chain = {name: [one for one in requests if _chain(one) == name] for name in ("no_repeat_ngram", "TiltByLastId")}
    assert sorted(map(_history, by_chain["no_repeat_ngram"])) == sorted(map(_expected, edited))
    assert sorted(map(_history, by_chain["TiltByLastId"])) == sorted(map(_expected, read))
    assert len(requests) == len(edited) + len(read)
    rows = [sum(len(output) for _, output in group) for group in (edited, read)]
    for processor, other, count in (("no_repeat_ngram", AllowsLast, rows[0]), (TiltByLastId, Tilt, rows[1])):
        name = processor if isinstance(processor, str) else processor.__name__
        same, another = (replay(recording, [Replacement(one, name)]) for one in (processor, other))
        assert not same.differs, _first(same)
        assert another.differs
        for result in (same, another):
            assert sum(request.compared for request in result.requests) == count
            assert not any(request.not_compared or request.error for request in result.requests)
        assert sum(len(request.rows) for request in another.requests) > count // 4


def steps(path: Path) -> int:
    """Number of steps of requests in the file so far."""
    sessions = read_recording(path).sessions if path.stat().st_size else []
    return sum(len(request.steps) for session in sessions for request in session.requests)


def _chain(request: RecordedRequest) -> str:
    return ", ".join(map(display_name, request.began.processors))


def _history(request: RecordedRequest) -> tuple[list[int], list[int]]:
    recorded = request.began.request
    columns = [recorded.output_ids, *(step.new_token_ids for step in request.steps)]
    return unpack_int32(recorded.prompt_ids).tolist(), unpack_int32(b"".join(columns)).tolist()


def _expected(generated: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """No step follows the last id."""
    prompt, output = generated
    return prompt, output[:-1]


def _first(result: Replay) -> Any:
    return next((request.error or request.to_json()["rows"][0] for request in result.requests if request.differs), None)
