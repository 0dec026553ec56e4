"""Recordings and replays as lines of text."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.text import Text

from logitport_server.cli.display.tables import Column, lines_of, number
from logitport_server.cli.display.text import escape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport.recording.reader import RecordedSession, Recording
    from logitport.testing.replaying.effects import RowDifference
    from logitport.testing.replaying.replay import Replay, ReplayedRequest, ReplayedRow

_CONTENT = (Column("REQUEST"), number("PROMPT"), number("STEPS"), Column("STATE"), Column("CHAIN", max_cells=80))
_MAX_IDS = 8


def content_lines(recording: Recording, request_id: str | None = None) -> Iterator[Text]:
    """Describe the sessions of a recording and their requests."""
    for index, session in enumerate(recording.sessions):
        if index:
            yield Text()
        yield Text(escape_lines(f"{_session_title(session)}"), style="bold")
        yield from lines_of(
            _CONTENT,
            (
                (
                    request.began.request_id or "-",
                    len(request.began.prompt),
                    len(request.steps),
                    "ended" if request.ended else "open",
                    ", ".join(one.display_name for one in request.began.processors) or "-",
                )
                for request in session.requests
                if request_id in (None, request.began.request_id)
            ),
        )
    if recording.incomplete_bytes:
        yield Text(f"The last {recording.incomplete_bytes} bytes are incomplete: a process ended while it wrote them.")


def content_of(recording: Recording, request_id: str | None = None) -> dict[str, Any]:
    """The same as JSON data."""
    return {
        "sessions": [
            {
                "engine": session.opened.engine,
                "model_name": session.opened.model_name,
                "vocab_size": session.opened.vocab_size,
                "started": session.opened.started,
                "ended": session.stopped.reason if session.stopped else "",
                "dropped_steps": session.dropped_steps,
                "requests": [
                    {
                        "request_id": request.began.request_id,
                        "prompt_length": len(request.began.prompt),
                        "steps": len(request.steps),
                        "ended": request.ended,
                        "chain": [
                            {"processor": one.display_name, "digest": one.digest, "params": dict(one.params)}
                            for one in request.began.processors
                        ],
                    }
                    for request in session.requests
                    if request_id in (None, request.began.request_id)
                ],
            }
            for session in recording.sessions
        ],
        "incomplete_bytes": recording.incomplete_bytes,
    }


def replay_lines(replay: Replay, texts: Mapping[int, str]) -> Iterator[Text]:
    """Describe the differences, request by request, and then in one line.

    Args:
        replay: the replay.
        texts: the texts of ids; empty for none.
    """
    shown = _Ids(texts)
    for request in replay.requests:
        if request.differs:
            yield from _request_lines(request, shown)
            yield Text()
    yield _summary(replay)


def _session_title(session: RecordedSession) -> str:
    opened = session.opened
    started = datetime.fromtimestamp(opened.started, timezone.utc)
    parts = [
        f"session of {started:%Y-%m-%d %H:%M:%S} UTC",
        *([opened.engine] if opened.engine else []),
        *([opened.model_name] if opened.model_name else []),
        f"{opened.vocab_size} ids",
    ]
    if session.dropped_steps:
        parts.append(f"{session.dropped_steps} steps dropped")
    if session.stopped is None:
        parts.append("not closed: it is still open, or its process has ended or could not write")
    elif session.stopped.reason != "closed":
        parts.append(f"stopped: {session.stopped.message}")
    return ", ".join(parts)


class _Ids:
    """Shows ids with their texts."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts

    def one(self, token_id: int) -> str:
        return f"{token_id} {self._texts[token_id]!r}" if self._texts else str(token_id)

    def some(self, ids: Sequence[int]) -> str:
        return _listed([self.one(token_id) for token_id in ids[:_MAX_IDS]], len(ids))

    def best(self, best: Sequence[tuple[int, float]]) -> str:
        shown = (f"{self.one(token_id)} {probability:.3f}" for token_id, probability in best)
        return "   ".join(shown) or "no id is left"


def _request_lines(request: ReplayedRequest, ids: _Ids) -> Iterator[Text]:
    title = f"request {request.request_id or '(without id)'}: {', '.join(request.chain) or 'refused'}"
    yield Text(escape_lines(title), style="bold")
    for row in request.rows:
        yield from _row_lines(row, ids)
    if request.error and not any(row.error for row in request.rows):
        yield Text(escape_lines(f"  the new version fails: {request.error}"), style="red")


def _row_lines(row: ReplayedRow, ids: _Ids) -> Iterator[Text]:
    line = Text(f"  step {row.step}{f' draft {row.offset}' if row.offset else ''}, after {row.length} ids: ")
    if row.difference is not None:
        _describe(line, row.difference, ids)
    elif row.error:
        line.append(escape_lines(f"the new version fails: {row.error}"), style="red")
    else:
        line.append(escape_lines(f"the recorded version has failed: {row.recorded_error}"), style="yellow")
    yield line
    if row.chosen_denied and row.chosen is not None:
        yield Text(f"    the engine chose {ids.one(row.chosen)}, which the new version denies", style="red")
    if row.recorded is not None and row.new is not None:
        yield Text(f"    recorded  {ids.best(row.recorded)}", style="dim")
        yield Text(f"    new       {ids.best(row.new)}")


def _describe(line: Text, found: RowDifference, ids: _Ids) -> None:
    if found.forced != found.was_forced:
        was, now = ("several ids" if one is None else ids.one(one) for one in (found.was_forced, found.forced))
        line.append(f"leaves {now} instead of {was}; ", style="yellow")
    parts = [
        *([(f"denies {ids.some(found.denied.tolist())}", "red")] if found.denied.size else []),
        *([(f"allows {ids.some(found.allowed.tolist())}", "green")] if found.allowed.size else []),
    ]
    if found.biased.size:
        shown = [
            f"{ids.one(token_id)} by {bias:+g}"
            for token_id, bias in zip(found.biased[:_MAX_IDS].tolist(), found.bias, strict=False)
        ]
        parts.append((f"shifts {_listed(shown, found.biased.size)}", "cyan"))
    for index, (text, style) in enumerate(parts):
        line.append("; " if index else "").append(text, style=style)


def _listed(shown: Sequence[str], count: int) -> str:
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return ", ".join(shown) + more


def _summary(replay: Replay) -> Text:
    rows = sum(len(request.rows) for request in replay.requests)
    compared = sum(request.compared for request in replay.requests)
    differing = sum(request.differs for request in replay.requests)
    missing = sum(request.not_compared for request in replay.requests)
    text = (
        f"{differing} of {len(replay.requests)} requests differ, in {rows} of {compared} rows"
        if differing
        else f"no difference in {compared} rows of {len(replay.requests)} requests"
    )
    if missing:
        text += f"; {missing} rows without recorded edits or logits were not compared"
    if replay.left_out:
        text += f"; {replay.left_out} requests without the processor were left out"
    return Text(text, style="yellow" if differing else "green")
