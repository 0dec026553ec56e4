"""`logitport replay`."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field
from rich.text import Text

from logitport.errors import InvalidArgument, LogitportError, escaped
from logitport.tokenizers import read_tokenizer
from logitport_recording.reading.event_fields import display_name, json_object
from logitport_recording.reading.reader import MAX_MEMORY_BYTES, read_recording
from logitport_server.cli.display import Column, lines_of, number, show
from logitport_server.cli.processor_file import read_processor
from logitport_server.cli.servers import print_json
from logitport_server.config.option import Argument, Flag, Metavar
from logitport_server.config.units import Size
from logitport_server.lifecycle.start_errors import StartupError, UsageError
from logitport_session import stubs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_recording.reading.reader import RecordedSession, Recording
    from logitport_testing.replaying.replacement import Replacement
    from logitport_testing.replaying.replay import Replay


_CONTENT = (Column("REQUEST"), number("PROMPT"), number("STEPS"), Column("STATE"), Column("CHAIN", max_cells=80))


class ReplayRecording(BaseModel):
    """Count the rows in which another version of a processor would have differed from a recorded one.

    It runs on the recorded histories, in this process. Without --with, the requests of the recording are listed. Exits
    with status 1 where the versions differ, and 2 where they cannot be compared.
    """

    recording: Argument[Annotated[Path, Metavar("FILE")]] = Field(
        description="file that a session has recorded, see LOGITPORT_RECORD"
    )
    versions: Annotated[list[Annotated[str, Metavar("[NAME=]FILE:CLASS")]], Flag("--with")] = Field(
        [],
        description="another version, such as my.py:New; NAME is the recorded processor that it replaces: its class, "
        "name or digest",
    )
    request: Annotated[str | None, Metavar("ID")] = Field(None, description="only the requests with this id")
    tokenizer: Annotated[Path | None, Metavar("PATH")] = Field(
        None,
        description="tokenizer.json of the recorded model, or its folder: the tokenizer of processors",
    )
    run_payloads: Annotated[bool, Flag("--run-payloads")] = Field(
        False,
        description="run the code of shipped processors that the recording holds, in this process, without a sandbox: "
        "only for recordings that you trust",
    )
    max_memory: Size = Field(
        MAX_MEMORY_BYTES,
        ge=1 << 20,
        description="memory for the recorded events, with --request for those of its requests",
    )
    as_json: Annotated[bool, Flag("--json")] = Field(False, description="print JSON")

    def run(self) -> None:
        try:
            differs = self._compare() if self.versions else self._list()
        except (LogitportError, StartupError) as error:
            raise UsageError(str(error)) from error
        sys.exit(1 if differs else 0)

    def _compare(self) -> bool:
        from logitport_testing.replaying.replay import replay

        stubs.offer()
        recording = self._read()
        if self.tokenizer is not None:
            # A file that cannot be read is an error, also if no processor uses it.
            read_tokenizer(self.tokenizer.name, self.tokenizer)
        versions = [_replacement(one) for one in self.versions]
        result = replay(
            recording,
            versions,
            request_id=self.request,
            tokenizer=self.tokenizer,
            run_payloads=self.run_payloads,
        )
        if not any(request.compared or request.not_compared or request.error for request in result.requests):
            raise InvalidArgument("no step can be compared: no row was recorded")
        if not any(request.compared or request.error for request in result.requests):
            raise InvalidArgument(
                "no step can be compared: the chains read logits, and no logits were recorded; record with a smaller "
                "sample_every"
            )
        if self.as_json:
            print_json(result.to_json())
        else:
            show(_replay_lines(result))
        return result.differs

    def _read(self) -> Recording:
        return read_recording(self.recording, request_id=self.request, max_memory_bytes=self.max_memory)

    def _list(self) -> bool:
        if self.tokenizer is not None:
            raise UsageError("--tokenizer is that of the versions: give --with [NAME=]FILE:CLASS, too")
        if self.run_payloads:
            raise UsageError("--run-payloads is for a comparison: give --with [NAME=]FILE:CLASS, too")
        recording = self._read()
        if self.as_json:
            print_json(_content_of(recording))
        else:
            show(_content_lines(recording))
        return False


def _replacement(version: str) -> Replacement:
    from logitport_testing.replaying.replacement import Replacement

    name, separator, source = version.rpartition("=")
    if separator and not name:
        raise UsageError(f"--with {version}: write NAME=FILE:CLASS, or FILE:CLASS")
    return Replacement(read_processor(source), name)


def _content_lines(recording: Recording) -> Iterator[Text]:
    """Describe the sessions of a recording and their requests."""
    for index, session in enumerate(recording.sessions):
        if index:
            yield Text()
        yield Text(escaped(_session_title(session)), style="bold")
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


def _content_of(recording: Recording) -> dict[str, Any]:
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


def _replay_lines(replay: Replay) -> Iterator[Text]:
    """Summarize the requests that differ, each in one line, and then all in one."""
    for request in replay.requests:
        if request.differs:
            yield Text(escaped(f"request {request.request_id or '(without id)'}: {request.summary}"))
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
