"""Seeds for fuzzing, by target: valid messages of engines, authors, the server and its workers."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, Request, RowEdits
from logitport.core.edits import Edits, pack_bits
from logitport_programs.program import MAX_TOKEN_ID, Parameter, Program, Value
from logitport_programs.rules import OPERATORS, Context
from logitport_programs.types import ONE, Element, Size
from logitport_programs.types import VOCAB as VOCAB_SIZE
from logitport_proto import common_pb2, processing_pb2
from logitport_server.worker import messages, packing
from tests.storm.fuzzing.served_steps import int32
from tests.storm.fuzzing.targets import ROWS, VOCAB

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAYLOADS = Path(__file__).parents[2] / "client" / "payload" / "data"
_WINDOW = 3
_LENGTH = struct.Struct("<I")


class Scale(CustomLogitProcessor):
    """Reads logits."""

    factor = 0.5

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, params in enumerate(custom_param_list or []):
            logits[row] *= params.get("factor", self.factor)
        return logits


class Ban(EditProcessor):
    """Reads no logits."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([token_id for token_id in request.params.get("ban", ()) if token_id % 2])


def corpora() -> dict[str, list[bytes]]:
    """Return the seeds by name of the target."""
    payloads = [Scale.to_str(), Ban.to_str(), *_of_other_pythons()]
    return {
        "frames": _local_socket(),
        "served_steps": _commands(),
        "serialized_payload": [text.encode() for text in payloads],
        "pickle": [bytes.fromhex(json.loads(text)["callable"]) for text in payloads],
        "edits": [message.SerializeToString() for message in _edits()],
        "session_replies": [_framed(edits) for edits in _edits()],
        "worker_reply": _replies(),
        "program": [program.to_bytes() for program in _programs()],
        "state": [bytes([number]) for number in range(16)],
        "drawn_program": [np.random.default_rng(seed).bytes(4000) for seed in range(16)],
    }


def _commands() -> list[bytes]:
    """Commands of `served_steps`: steps with large and small replies, and each kind of frame after them."""
    large, small, both, new_id = 1 << 3, 2 << 3, 3 << 3, 1 << 6
    steps = [[], [large], [small], [large, small], [small, large], [large, large, both | new_id, 7 << 3 | new_id]]
    other_history, remove, add, raw, repeat = 3 | large, 4, 5, 6 | 2 << 3, 7
    frames = [[], [other_history], [remove], [add], [raw, 8, 1], [repeat], [remove, large, add, large]]
    return [bytes(before + after + [small]) for before in steps for after in frames]


def _framed(edits: common_pb2.Edits) -> bytes:
    """Two replies to a step."""
    step_edits = processing_pb2.StepEdits(edits=edits, ended_admissions=1)
    reply = processing_pb2.SessionResponse(seq=1, edits=step_edits).SerializeToString()
    return 2 * (_LENGTH.pack(len(reply)) + reply)


def _programs() -> list[Program]:
    """Programs that use all operators."""
    inputs = {
        "where": (3, 2, 0), "not": (3,), "and": (3, 3), "or": (3, 3), "xor": (3, 3), "gather_or": (0, 5),
        "scatter_drop": (0, 5, 2), "squeeze": (6,),
    }  # fmt: skip
    fields: dict[str, dict[str, Any]] = {
        "std": {"integer": 1}, "top_k": {"integer": 2}, "expand": {"shape": (ONE, VOCAB_SIZE)},
        "argsort": {"flag": True}, "slice": {"begin": ONE, "end": VOCAB_SIZE},
        "pad": {"begin": ONE, "end": Size(), "number": -1.0},
        "cast": {"element": Element.INT64}, "gather_or": {"number": -1.0},
    }  # fmt: skip
    sources = (
        Value("logits"),
        Value("parameter", parameter="scale"),
        Value("full", element=Element.LOGITS, shape=(), number=2.0),
        Value("token_mask"),
        Value("token_counts", flag=True),
        Value("history"),
        Value("unsqueeze", (0,), axis=2),
        Value("constant", element=Element.INT64, shape=(Size(constant=2),), data=struct.pack("<2q", 1, -1)),
        Value("arange", shape=(VOCAB_SIZE,)),
        Value("history_length"),
        Value("parameter", parameter="banned"),
    )
    made = []
    for name, operator in OPERATORS.items():
        if operator.inputs == 0:
            continue
        given = {"axis": 2 if name == "squeeze" else 1} if "axis" in operator.fields else {}
        value = Value(name, inputs.get(name, (0,) * (operator.inputs or 2)), **given, **fields.get(name, {}))
        made.append(_with_result([*sources, value]))
    return made


def _with_result(values: list[Value]) -> Program:
    """The program whose result is the sum of all values that nothing reads."""
    scale = Parameter("scale", Element.FLOAT32, 1.0, 0.0, 2.0)
    banned = Parameter("banned", Element.INT64, None, 0.0, MAX_TOKEN_ID, length=3)
    context = Context({"scale": scale, "banned": banned}, _WINDOW)
    types = []
    for value in values:
        types.append(OPERATORS[value.operator].rule(value, [types[place] for place in value.inputs], context))
    read = {place for value in values for place in value.inputs}
    total = 0
    for place in [place for place in range(1, len(values)) if place not in read]:
        added = place
        if types[place].element is not Element.LOGITS:
            values.append(Value("cast", (added,), element=Element.LOGITS))
            added = len(values) - 1
        for _ in types[place].shape:
            values.append(Value("amax", (added,), axis=1))
            added = len(values) - 1
        values.append(Value("unsqueeze", (added,), axis=1))
        values.append(Value("add", (total, len(values) - 1)))
        total = len(values) - 1
    return Program("Seed", tuple(values), (scale, banned), _WINDOW)


def _of_other_pythons() -> list[str]:
    found = []
    for file in sorted(_PAYLOADS.glob("python*.json")):
        classes = json.loads(file.read_text())
        found += [classes["Trivial"][0], classes["TryExcept"][0]]
    return found


@dataclass(eq=False)
class _TrackedRequest:
    """A request and its history, as an engine tracks them."""

    slot: int
    generation: int
    request: Request

    def __post_init__(self) -> None:
        self.history = [*self.request.prompt_token_ids, *self.request.output_token_ids]


def _local_socket() -> list[bytes]:
    known = [
        _TrackedRequest(0, 0, Request([1, 2, 1], processors=[("no_repeat_ngram", {"ngram_size": 2})])),
        _TrackedRequest(
            1, 3, Request([5], [6], processors=[("disallowed_tokens", {"token_ids": [3, 4]})], on_error="skip")
        ),
        _TrackedRequest(2, 0, Request(sampling_params={"temperature": 0.5}, tenant="t", request_id="r")),
    ]
    opening = {"open": {"vocab_size": VOCAB, "datatype": "FP32", "max_draft_tokens": 3, "eos_token_ids": [2]}}
    requests = [{"slot": one.slot, "generation": one.generation, "request": one.request.to_proto()} for one in known]
    adding = {"add": {"requests": requests}}
    first = _step({one: [] for one in known})
    advanced = _step({known[0]: [7], known[2]: [8, 9]})
    drafted = _step({known[1]: []}, drafts=[1, 2])
    removing = {"remove": {"slots": int32(0, 1), "generations": int32(0, 3)}}
    region = {"open_region": {"size_bytes": 4 * VOCAB * ROWS}}
    inline = {"datatype": "FP32", "shape": [1, VOCAB], "raw": bytes(4 * VOCAB)}
    placed = {"datatype": "FP32", "shape": [1, VOCAB], "region": {"region_id": 1, "byte_offset": 400}}
    return [
        _local(opening),
        _local(opening, adding, first, advanced, drafted, removing),
        _local(opening, region, adding, first, {"logits": {"logits": placed}}),
        _local(opening, adding, first, {"logits": {"logits": inline}}),
        _local(opening, region, {"open_region": {"size_bytes": 64, "replaces": 1}}, adding, adding),
    ]


def _step(new: dict[_TrackedRequest, list[int]], drafts: Sequence[int] = ()) -> dict[str, Any]:
    """Return the frame of a step with these new ids. Drafts are only possible with one request."""
    columns = {
        "slots": int32(*(one.slot for one in new)),
        "generations": int32(*(one.generation for one in new)),
        "base_lengths": int32(*(len(one.history) for one in new)),
        "history_crcs": struct.pack(f"<{len(new)}I", *(zlib.crc32(int32(*one.history)) for one in new)),
        "new_token_counts": int32(*map(len, new.values())),
        "new_token_ids": int32(*(token_id for token_ids in new.values() for token_id in token_ids)),
    }
    if drafts:
        offsets = range(1 + len(drafts))
        columns |= {"draft_counts": int32(len(drafts)), "draft_token_ids": int32(*drafts)}
        columns |= {"row_requests": int32(*[0] * len(offsets)), "row_draft_offsets": int32(*offsets)}
    for request, token_ids in new.items():
        request.history += token_ids
    return {"step": columns}


def _local(*frames: dict[str, Any]) -> bytes:
    data = [processing_pb2.SessionRequest(seq=seq, **frame).SerializeToString() for seq, frame in enumerate(frames, 1)]
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in data)


def _edits() -> list[common_pb2.Edits]:
    row_edits = [RowEdits() for _ in range(ROWS)]
    row_edits[0].deny([1, 2, 3])
    row_edits[0].bias([4, 5], [1.5, -2.0])
    row_edits[1].allow([7, 8, 9])
    row_edits[2].force(11)
    row_edits[3].bitmask(pack_bits(np.arange(VOCAB) % 3 == 0))
    return [Edits.pack(list(enumerate(row_edits))[:count], VOCAB).to_proto() for count in range(ROWS + 1)]


def _replies() -> list[bytes]:
    error = messages.Error(common_pb2.ERROR_CODE_PROCESSOR_FAILED, "raised", "Traceback")
    edited = Edits.from_proto(_edits()[-1], ROWS, VOCAB).to_columns()
    replies: list[tuple[messages.Reply, Sequence[bytes]]] = [
        (messages.EditReply(), edited),
        (messages.EditReply({1: error}), edited),
        (messages.ProcessReply({2: error}, [1, 2]), ()),
        (messages.LoadReply(reads_logits=True, gpu_error="no driver"), ()),
        (messages.ErrorReply(error), ()),
        (messages.EmptyReply(), [b"", b"x", edited[0]]),
    ]
    return [packing.pack(1, messages.encode(reply), columns) for reply, columns in replies]
