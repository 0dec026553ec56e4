"""A recording of the model of a story, and versions of its processors."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.row_edits import EditKind
from logitport_proto.common_pb2 import Edits
from logitport_proto.recording_pb2 import RecordedEvent, RecordedProcessor, RecordedRow, TopLogits
from logitport_recording.writing.top_logits import log_sum
from logitport_testing import StoryModel
from tests.recording.reading.build import began, edits, member, opened, stepped, top

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

STEPS = 8
STORY = StoryModel()
AS_RECORDED = '''
"""New versions of recorded processors."""

from logitport import CustomLogitProcessor, EditProcessor


class NoRepeat(EditProcessor):
    """Denies all ids of the output."""

    def edit(self, request, edits):
        edits.deny(request.history.output_token_ids)


class Cooler(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits * 2
'''
NEW = AS_RECORDED.replace("output_token_ids)", "output_token_ids[1:])").replace("* 2", "* 3")
REFUSING = NEW.replace(
    "    def edit",
    """    @classmethod
    def validate_params(cls, params):
        raise ValueError("no strength")

    def edit""",
)


def write_recording(path: Path) -> None:
    """Write three requests: edits, with logits in each third step; logits in each second step; a refused processor."""
    chains = [
        [_shipped("NoRepeat")],
        [RecordedProcessor(builtin="top_k", params=b'{"top_k":20}'), _shipped("Cooler")],
        [_shipped("Lost")],
    ]
    events = [_opened()]
    events += _request(0, "chat-edits", chains[0], 3)
    events += _request(1, "chat-reads", chains[1], 2)
    events += _request(2, "chat-unknown", chains[2], 3)
    path.write_bytes(member(*events))


def _opened() -> RecordedEvent:
    return opened(STORY.vocab_size, model_name="story", engine="test")


def _shipped(name: str) -> RecordedProcessor:
    return RecordedProcessor(class_name=name, digest="ab" * 32, params=b'{"strength":1}')


class _MakesFolder:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def write_hostile_recording(path: Path, marker: Path, place: str = "payload") -> None:
    """Write a request whose chain has code that makes a folder.

    Args:
        path: of the recording.
        marker: the folder.
        place: the field of the code, "payload" or "builtin".
    """
    code = json.dumps({"callable": pickle.dumps(_MakesFolder(marker)).hex()})
    chain = [RecordedProcessor(class_name="Ban"), RecordedProcessor(class_name="Halves", **{place: code})]
    events = [_opened(), *_request(0, "chat-hostile", chain[:1], 1)]
    events[1].request_began.processors.append(chain[1])
    path.write_bytes(member(*events))


def _request(key: int, name: str, chain: Sequence[RecordedProcessor], sample_every: int) -> list[RecordedEvent]:
    prompt = STORY.encode("Once upon a time")
    history, new, events = list(prompt), [], [began(key, name, prompt, chain)]
    for index in range(STEPS):
        raw = STORY(history)
        output = np.array(history[len(prompt) :], np.int32)
        row = RecordedRow()
        if len(chain) == 1:
            after = raw.copy()
            after[output] = -np.inf
            denied = [(EditKind.DENY, output, None)] if output.size else []
            row.edits.CopyFrom(edits(*denied, vocab_size=STORY.vocab_size) if denied else Edits())
        else:
            after = np.where(raw >= np.sort(raw)[-20], 2 * raw, -np.inf).astype(np.float32)
        if index % sample_every == 0:
            best = _best(raw)
            row.before.CopyFrom(_top(raw, best))
            row.after.CopyFrom(_top(after, np.unique([*_best(after), *best])))
        events.append(stepped(key, index, len(history) - len(new), new, [row]))
        new = [int(after.argmax())]
        history += new
    return events


def _best(row: NDArray[np.float32]) -> NDArray[np.intp]:
    return np.argsort(-row, kind="stable")[:150]


def _top(row: NDArray[np.float32], ids: NDArray[np.intp]) -> TopLogits:
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return top(ids.tolist(), row[ids].tolist(), log_sum(row))
