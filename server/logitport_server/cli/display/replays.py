"""The content of recordings, and the results of replays, as lines of text."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.text import Text

from logitport.recording.events import display_name, json_object
from logitport_server.cli.display.tables import Column, lines_of, number
from logitport_server.cli.display.text import escape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.recording.reader import RecordedSession, Recording
    from logitport.testing.replaying.replay import Replay

_CONTENT = (Column("REQUEST"), number("PROMPT"), number("STEPS"), Column("STATE"), Column("CHAIN", max_cells=80))


def content_lines(recording: Recording) -> Iterator[Text]:
    """Describe the sessions of a recording and their requests."""
    for index, session in enumerate(recording.sessions):
        if index:
            yield Text()
        yield Text(escape_lines(f"{_session_title(session)}"), style="bold")
        yield from lines_of(
            _CONTENT,
            (
                (
                    request.began.request.request_id or "-",
                    len(request.began.request.prompt_ids) // 4,
                    len(request.steps),
                    "ended" if request.ended else "open",
                    ", ".join(display_name(one) for one in request.began.processors) or "-",
                )
                for request in session.requests
            ),
        )
    if recording.incomplete_bytes:
        yield Text(f"The last {recording.incomplete_bytes} bytes are incomplete: a process ended while it wrote them.")


def content_of(recording: Recording) -> dict[str, Any]:
    """The same as JSON data."""
    return {
        "sessions": [
            {
                "engine": session.began.opening.engine,
                "model_name": session.began.opening.model_name,
                "vocab_size": session.began.opening.vocab_size,
                "started": session.began.time,
                "ended": session.stopped.reason if session.stopped else "",
                "dropped_steps": session.dropped_steps,
                "requests": [
                    {
                        "request_id": request.began.request.request_id,
                        "prompt_length": len(request.began.request.prompt_ids) // 4,
                        "steps": len(request.steps),
                        "ended": request.ended,
                        "chain": [
                            {"processor": display_name(one), "digest": one.digest, "params": json_object(one.params)}
                            for one in request.began.processors
                        ],
                    }
                    for request in session.requests
                ],
            }
            for session in recording.sessions
        ],
        "incomplete_bytes": recording.incomplete_bytes,
    }


def replay_lines(replay: Replay) -> Iterator[Text]:
    """Summarize the requests that differ, each in one line, and then all in one."""
    for request in replay.requests:
        if request.differs:
            yield Text(escape_lines(f"request {request.request_id or '(without id)'}: {request.summary}"))
    yield Text(_summary(replay))


def _session_title(session: RecordedSession) -> str:
    opening = session.began.opening
    started = datetime.fromtimestamp(session.began.time, timezone.utc)
    parts = [
        f"session of {started:%Y-%m-%d %H:%M:%S} UTC",
        *([opening.engine] if opening.engine else []),
        *([opening.model_name] if opening.model_name else []),
        f"{opening.vocab_size} ids",
    ]
    if session.dropped_steps:
        parts.append(f"{session.dropped_steps} steps dropped")
    if session.stopped is None:
        parts.append("not closed: it is still open, or its process has ended or could not write")
    elif session.stopped.reason != "closed":
        parts.append(f"stopped: {session.stopped.message}")
    return ", ".join(parts)


def _summary(replay: Replay) -> str:
    compared = [request for request in replay.requests if request.compared]
    rows = sum(request.compared for request in compared)
    differing = sum(request.differs for request in compared)
    missing = sum(request.not_compared for request in replay.requests)
    parts = []
    if differing:
        differing_rows = sum(len(request.rows) for request in compared)
        parts.append(f"{differing} of {len(compared)} requests differ, in {differing_rows} of {rows} rows")
    elif compared:
        parts.append(f"no difference in {rows} rows of {len(compared)} requests")
    if len(compared) < len(replay.requests):
        parts.append(f"{len(replay.requests) - len(compared)} of {len(replay.requests)} requests were not compared")
    if missing:
        parts.append(f"{missing} rows without recorded edits or logits were not compared")
    if replay.left_out:
        parts.append(f"{replay.left_out} requests without the processor were left out")
    return "; ".join(parts)
