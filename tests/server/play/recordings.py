"""A recording of the model of a story, and versions of its processors."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.row_edits import EditKind
from logitport.recording.chunks import FILE_HEADER, pack
from logitport.recording.codec import encode
from logitport.recording.events import (
    RecordedProcessor,
    RecordedRow,
    RequestBegan,
    RequestStepped,
    SessionOpened,
    TopLogits,
)
from logitport.recording.top_logits import log_sum
from logitport.testing import StoryModel

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
    shipped = {"digest": "ab" * 32, "params": {"strength": 1}}
    edits = [RecordedProcessor(class_name="NoRepeat", **shipped)]
    reads = [
        RecordedProcessor(builtin="top_k", params={"top_k": 20}),
        RecordedProcessor(class_name="Cooler", **shipped),
    ]
    events: list[Any] = [SessionOpened(STORY.vocab_size, "FP32", "story", engine="test")]
    events += _request(0, "chat-edits", edits, 3)
    events += _request(1, "chat-reads", reads, 2)
    events += _request(2, "chat-unknown", [RecordedProcessor(class_name="Lost", **shipped)], 3)
    path.write_bytes(FILE_HEADER + pack(7, b"".join(map(encode, events))))


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
    events: list[Any] = [SessionOpened(STORY.vocab_size, "FP32", "story", engine="test")]
    events += _request(0, "chat-hostile", chain[:1], 1)
    events[1] = replace(events[1], processors=tuple(chain))
    path.write_bytes(FILE_HEADER + pack(7, b"".join(map(encode, events))))


def _request(key: int, name: str, chain: Sequence[RecordedProcessor], sample_every: int) -> list[Any]:
    prompt = STORY.encode("Once upon a time")
    began = RequestBegan(key, name, np.array(prompt, np.int32), np.empty(0, np.int32), tuple(chain), {})
    history, new, events = list(prompt), np.empty(0, np.int32), [began]
    for index in range(STEPS):
        raw = STORY(history)
        output = np.array(history[len(prompt) :], np.int32)
        sampled = index % sample_every == 0
        if len(chain) == 1:
            after = raw.copy()
            after[output] = -np.inf
            row_edits: Any = ((EditKind.DENY, output, None),) if output.size else ()
        else:
            after, row_edits = np.where(raw >= np.sort(raw)[-20], 2 * raw, -np.inf).astype(np.float32), None
        tops = (_top(raw), _top(after, _top(raw).ids)) if sampled else (None, None)
        row = RecordedRow(0, row_edits, *tops)
        events.append(RequestStepped(key, index, len(history) - len(new), new, np.empty(0, np.int32), (row,)))
        new = np.array([int(after.argmax())], np.int32)
        history += new.tolist()
    return events


def _top(row: NDArray[np.float32], others: Sequence[int] = ()) -> TopLogits:
    ids = np.unique(np.concatenate([np.argsort(-row, kind="stable")[:150], np.array(others, np.int64)])).astype(
        np.int32
    )
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return TopLogits(ids, row[ids], log_sum(row))
