"""Functions that the page of a recording calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from logitport_play.replays import ReplaySpec
from logitport_play.web.routes import application, read
from logitport_recording.reading.event_fields import display_name, history_of, json_object
from logitport_testing.view.replay_tiles import replay_charts, replay_tiles

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from logitport_play.replays import Replays
    from logitport_play.watched_files import Files
    from logitport_proto.recording_pb2 import RecordedProcessor

_MAX_PARAMS = 300  # characters


class ReplayPlay:
    """The application: a recording by its name, new versions of processors, and their replays."""

    def __init__(self, name: str, files: Files, replays: Replays) -> None:
        self._name = name
        self._files = files
        self._replays = replays

    def guarded(self, token: str, port: int) -> ASGIApp:
        """Make the application behind its guard."""
        functions = {"state": self.state, "files": self.files, "replay": self.replay}
        return application(functions, "replay.html", token, port)

    def state(self, _: bytes) -> dict[str, Any]:
        """List the choices of the page: requests and versions."""
        seen = self.files(_)
        return {
            "recording": self._name,
            "requests": [
                {
                    "name": request.began.request.request_id or f"request {index + 1}",
                    "steps": len(request.steps),
                    "chain": ", ".join(display_name(one) for one in request.began.processors),
                }
                for index, (_, request) in enumerate(self._replays.requests)
            ],
            "versions": [f"{file.name}:{name}" for file in self._files for name in file.processors],
            **seen,
        }

    def files(self, _: bytes) -> dict[str, Any]:
        """List the files of processors: when each was saved, and its error."""
        return self._files.to_json()

    def replay(self, body: bytes) -> dict[str, Any]:
        """Run a request. Raises InvalidArgument or msgspec.DecodeError."""
        spec = read(body, ReplaySpec)
        result = self._replays.replay(spec)
        rows, began, outcome = result.rows, result.request.began, result.outcome
        since = min(spec.since, result.earlier_rows)  # a replay that begins again has none
        name = began.request.request_id or spec.request + 1
        return {
            "since": since,
            "steps": len(rows),
            "ended": result.ended,
            "error": outcome.error,
            "tiles": replay_tiles("a", history_of(began), rows, self._replays.texts, len(rows) - 1),
            "charts": replay_charts(rows),
            "panes": [row.pane for row in rows[since:]],
            "differ": [index for index, row in enumerate(rows) if row.differs],
            "summary": f"request {name}: {outcome.summary}" if outcome.error else outcome.summary,
            "chain": [
                _described(one, version, run_payloads=self._replays.run_payloads)
                for one, version in zip(began.processors, result.versions, strict=True)
            ],
        }


def _described(recorded: RecordedProcessor, version: str, *, run_payloads: bool) -> dict[str, Any]:
    params = orjson.dumps(json_object(recorded.params)).decode()
    if recorded.builtin or (recorded.payload and run_payloads):
        as_recorded = "as recorded"
    elif recorded.payload:
        as_recorded = "recorded, does not run"
    else:
        as_recorded = "not recorded: choose a version"
    return {
        "name": display_name(recorded),
        "kind": "built-in" if recorded.builtin else f"sha256:{recorded.digest[:12]}" if recorded.digest else "",
        "as_recorded": as_recorded,
        "params": params if len(params) <= _MAX_PARAMS else f"{params[:_MAX_PARAMS]} \N{HORIZONTAL ELLIPSIS}",
        "version": version,
    }
