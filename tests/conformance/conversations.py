"""Both sides of whole sessions: recorded from real sessions with faults, kept in files, and played to clients."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.errors import InvalidArgument, LimitExceeded, to_proto
from logitport_proto import processing_pb2
from logitport_session.embedded import EmbeddedSessions
from tests.conformance.conversation_server import DROP, RESTART, STALL
from tests.conformance.conversions import Names, answers_of, items_of, reply_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.conversions import Item

FOLDER = Path(__file__).parent / "recorded"

# Frames of which the order does not matter while several follow each other.
_UNORDERED = {"add", "remove"}


class Conversation(NamedTuple):
    """A recorded conversation.

    Attributes:
        commands: lines for a driver.
        outputs: of the driver for each command; `events` are those of the server's replies.
        connections: the frames of each connection with their answers.
    """

    commands: list[str]
    outputs: list[dict[str, Any]]
    connections: list[list[Item]]

    def text(self) -> str:
        """The content of a file: a line for each command, output and item."""
        parts = [
            *(f'"commands": {_lines(self.commands)}', f'"outputs": {_lines(self.outputs)}'),
            f'"connections": [{",".join(_lines(each) for each in self.connections)}]',
        ]
        return "{" + ",\n".join(parts) + "}\n"


def load(name: str) -> Conversation:
    """Read a file."""
    return Conversation(**json.loads((FOLDER / f"{name}.json").read_text()))


def _lines(values: list[Any]) -> str:
    return "[" + ",".join(f"\n{json.dumps(one)}" for one in values) + "\n]"


class _Held:
    """The requests that one connection holds."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def without_needless(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave out removals of requests that the connection does not hold: some clients send none."""
        return [item for item in items if "remove" not in item or item["remove"] in self._names]

    def answered(self, item: dict[str, Any], answer: Any) -> None:
        """Follow an item and its answer."""
        if "add" in item and "error" not in answer["added"]:
            self._names.add(item["add"])
        self._names.discard(item.get("remove", ""))


class Recording:
    """Records sessions that run in this process. Faults are set before the command that meets them.

    Args:
        opened: fields of the first reply that differ from the session's.

    Attributes:
        connections: what was recorded.
        faults: by kind of frame: a fault, "full" for a refused `open`, or "differ NAME..." for a step that arrives with
            other checksums of these requests.
    """

    def __init__(self, opened: Mapping[str, Any]) -> None:
        self.opened = opened
        self.connections: list[list[Item]] = []
        self.faults: dict[str, str] = {}
        self.names = Names()
        self._sessions = EmbeddedSessions()

    def connect(self) -> _RecordedConnection:
        self.connections.append([])
        return _RecordedConnection(self, self._sessions.frames(), self.connections[-1])

    def events_since(self, connection: int, item: int) -> list[list[Any]]:
        """The events of the last step since an item of a connection; of the logits' reply, too."""
        items = [
            *self.connections[connection][item:],
            *(one for each in self.connections[connection + 1 :] for one in each),
        ]
        found: list[list[Any]] = []
        for answer in [one["answer"] for one in items]:
            if isinstance(answer, str):
                continue
            for kind in ("edits", "logits"):
                if kind in answer:
                    found = [*(found if kind == "logits" else []), *map(_event, answer[kind].get("events", []))]
        return found

    def has_message(self, message: str) -> bool:
        """Whether a reply has this message, so that it is not the client's own."""
        return json.dumps(message) in json.dumps(self.connections)


def _event(event: Mapping[str, Any]) -> list[Any]:
    values = json.loads(event["values"]) if event.get("values") else {}
    return [event["request"], event["processor"], event.get("position", 0), event.get("name", ""), values]


class _RecordedConnection:
    def __init__(self, recording: Recording, frames: Any, items: list[Item]) -> None:
        self._recording = recording
        self._frames = frames
        self._items = items
        self._held = _Held()

    def answer(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse | str:
        names = self._recording.names
        kind = frame.WhichOneof("frame") or ""
        items = items_of(frame, names)
        fault = self._recording.faults.pop(kind, "")
        if fault in (DROP, STALL, RESTART):
            self._items += [{"receive": item, "answer": fault} for item in items]
            return fault
        if fault.startswith("differ "):
            crcs = np.frombuffer(frame.step.history_crcs, "<u4").copy()
            slots = np.frombuffer(frame.step.slots, "<i4").tolist()
            for name in fault.split()[1:]:
                crcs[slots.index(names.slot(name))] ^= 1
            frame.step.history_crcs = crcs.tobytes()
        if fault == "full":
            error = LimitExceeded("the server has as many sessions as it may")
            reply = processing_pb2.SessionResponse(seq=frame.seq, error=to_proto(error))
        else:
            data = self._frames.handle(frame.SerializeToString(), "embedded")
            reply = processing_pb2.SessionResponse.FromString(data)
        if reply.HasField("opened"):
            reply.opened.session_id, reply.opened.server_version = "recorded", ""
            for name, value in self._recording.opened.items():
                setattr(reply.opened, name, value)
        for item, answer in zip(items, answers_of(frame, reply, names), strict=True):
            if self._held.without_needless([item]):
                self._items.append({"receive": item, "answer": answer})
                self._held.answered(item, answer)
        return reply


class Player:
    """Answers as recorded, and notes frames that differ.

    Attributes:
        differences: what was received, and what was recorded instead.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.differences: list[str] = []
        self.names = Names()
        self._connections = [list(items) for items in conversation.connections]
        self._next = 0
        self._lock = threading.Lock()

    def connect(self) -> _PlayedConnection:
        with self._lock:
            self._next += 1
            if self._next <= len(self._connections):
                return _PlayedConnection(self, self._connections[self._next - 1])
            self.differences.append(f"connection {self._next} of {len(self._connections)}")
            return _PlayedConnection(self, [])

    def finish(self) -> list[str]:
        """The differences, with what was not received."""
        missing = [f"not received: {json.dumps(item['receive'])}" for items in self._connections for item in items]
        return self.differences + missing


class _PlayedConnection:
    def __init__(self, player: Player, items: list[Item]) -> None:
        self._player = player
        self._items = items
        self._held = _Held()

    def answer(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse | str:
        names = self._player.names
        answers = []
        for item in self._held.without_needless(items_of(frame, names)):
            answer = self._take(item)
            if isinstance(answer, str):
                if answer != "different":
                    self._drop_rest(answer)
                    return answer
                error = to_proto(InvalidArgument("this frame is not in the conversation"))
                return processing_pb2.SessionResponse(seq=frame.seq, error=error)
            answers.append(answer)
            self._held.answered(item, answer)
        return reply_of(frame, answers, names)

    def _take(self, item: dict[str, Any]) -> Any:
        kind = next(iter(item))
        for index, recorded in enumerate(self._items):
            if recorded["receive"] == item:
                return self._items.pop(index)["answer"]
            if kind not in _UNORDERED or kind not in recorded["receive"]:
                break
        expected = json.dumps(self._items[0]["receive"]) if self._items else "the end"
        self._player.differences.append(f"received {json.dumps(item)}\nrecorded {expected}")
        return "different"

    def _drop_rest(self, fault: str) -> None:
        """Other items of a frame that met a fault have the same fault, and are not received one by one."""
        while self._items and self._items[0]["answer"] == fault and next(iter(self._items[0]["receive"])) in _UNORDERED:
            del self._items[0]
