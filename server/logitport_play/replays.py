"""Runs recorded requests with new versions of their processors, for the page."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

import logitport_builtins
from logitport.errors import InvalidArgument, PayloadError
from logitport.tokenizers import read_tokenizer
from logitport_play.token_texts import TokenTexts
from logitport_play.watch import Watched
from logitport_testing.replaying.compared_rows import recorded_rows
from logitport_testing.replaying.replacement import Replacement, chain_of
from logitport_testing.replaying.replay import ReplayedRequest, replay_rows, session_tokenizers, with_tokenizer
from logitport_testing.runner import load_backend
from logitport_testing.view.replay_tiles import show_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from logitport_play.watched_files import Files
    from logitport_proto.processing_pb2 import OpenSession
    from logitport_proto.recording_pb2 import RecordedProcessor
    from logitport_recording.reading.reader import RecordedRequest, Recording
    from logitport_testing.replaying.compared_rows import ComparedRow
    from logitport_testing.runner import ChainRunner
    from logitport_testing.view.replay_tiles import ShownRow

MAX_ROWS = 2000
# A request returns after this time; the page calls again, and shows the rows so far.
_BUDGET_SECONDS = 0.25


class ReplaySpec(msgspec.Struct, forbid_unknown_fields=True):
    """Specification of a replay, from the page.

    Attributes:
        request: the index of the recorded request.
        versions: for each place of its chain FILE.py:NAME, or "" for the recorded processor; None chooses by the names
            of classes.
        since: the page needs the panes from this row on.
    """

    request: Annotated[int, Meta(ge=0)]
    versions: Annotated[list[Annotated[str, Meta(max_length=300)]], Meta(max_length=256)] | None = None
    since: Annotated[int, Meta(ge=0, le=MAX_ROWS)] = 0


class Replays:
    """The requests of a recording, and the present replay. Thread-safe: one call runs at a time.

    Args:
        recording: the recording.
        files: new versions of processors.
        tokenizer: a tokenizer.json, or a folder with one, for the texts of ids and for processors, or None.
        run_payloads: whether the code of recorded processors may run. Without it, chains that need this code show what
            was recorded.

    Raises:
        InvalidArgument: nothing was recorded.
        PayloadError: the tokenizer cannot be read.
    """

    def __init__(
        self, recording: Recording, files: Files, tokenizer: Path | None = None, *, run_payloads: bool = False
    ) -> None:
        self.requests: list[tuple[OpenSession, RecordedRequest]] = [
            (session.began.opening, request) for session in recording.sessions for request in session.requests
        ]
        if not self.requests:
            raise InvalidArgument("the recording has no request")
        self.texts: Mapping[int, str] = (
            {} if tokenizer is None else TokenTexts(read_tokenizer(tokenizer.name, tokenizer))
        )
        self._tokenizers = session_tokenizers((opening for opening, _ in self.requests), tokenizer)
        self.run_payloads = run_payloads
        self._files = files
        self._run: RequestReplay | None = None
        self._lock = Lock()
        logitport_builtins.add_tokenizers(self._tokenizers)

    def replay(self, spec: ReplaySpec) -> RequestReplay:
        """Run until the time for one call is used up. Call it again for the further rows.

        Raises:
            InvalidArgument: there is no such request, or its chain has another length.
        """
        deadline = time.perf_counter() + _BUDGET_SECONDS
        with self._lock:
            self._files.refresh()
            if spec.request >= len(self.requests):
                raise InvalidArgument(f"there is no request {spec.request}; choose one of the list")
            opening, request = self.requests[spec.request]
            recorded = request.began.processors
            versions = self._chosen(recorded) if spec.versions is None else spec.versions
            if len(versions) != len(recorded):
                raise InvalidArgument(
                    f"the chain has {len(recorded)} processors, and {len(versions)} versions are chosen"
                )
            key = spec.request, (*versions,), self._files.version
            if self._run is None or self._run.key != key:
                self._close()
                run = RequestReplay(key, request, versions, ReplayedRequest(request.began.request.request_id))
                self._start(run, with_tokenizer(opening) if self._tokenizers else opening)
                self._run = run
            run = self._run
            self._advance(run, deadline)
            return run

    def _start(self, run: RequestReplay, opening: OpenSession) -> None:
        try:
            new = {place: self._files.find(version) for place, version in enumerate(run.versions) if version}
            chain = chain_of(run.request.began.processors, new, run_payloads=self.run_payloads)
        except PayloadError as error:
            run.outcome.error = not_run = str(error)
            run.play = (row for part in run.request.parts for row in recorded_rows(opening, part, not_run))
        except InvalidArgument as error:
            run.outcome.error = str(error)
        else:
            run.runner = load_backend().open_runner("here")
            run.play = replay_rows(run.runner, opening, run.request, chain, run.outcome)

    def _advance(self, run: RequestReplay, deadline: float) -> None:
        watched = Watched(partial(run.advance, deadline, self.texts), self._files.paths)
        try:
            watched.run()
        except BaseException:
            if watched.stopped:  # the run may be in the middle of a row, or still in use
                self._run = None
            raise

    def warm_up(self) -> None:
        """Import what the first replay needs, which takes seconds."""
        with self._lock, load_backend().open_runner():
            pass

    def close(self) -> None:
        """End the replay."""
        with self._lock:
            self._close()
            logitport_builtins.remove_tokenizers(self._tokenizers)
            self._tokenizers.clear()

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None

    def _chosen(self, recorded: Sequence[RecordedProcessor]) -> list[str]:
        """The versions to begin with: those with the names of recorded classes, or else the first that fits."""
        found: list[tuple[int, str, bool]] = []
        for file in self._files:
            for name, processor in file.processors.items():
                replacement = Replacement(processor)
                place = replacement.place_in(recorded)
                if place is not None:
                    same = recorded[place].class_name == replacement.class_name
                    found.append((place, f"{file.name}:{name}", same))
        same_class = [one for one in found if one[2]]
        versions = [""] * len(recorded)
        for place, name, _ in reversed(same_class or found[:1]):
            versions[place] = name
        return versions


@dataclass(eq=False)
class RequestReplay:
    """The replay of a request, which can go on.

    Attributes:
        key: identifies it: the index of the request, its versions, and the version of the files.
        request: the recorded request.
        versions: as in `ReplaySpec`, chosen.
        outcome: the counts of the rows so far, and why the chain cannot run, is refused or has failed.
        play: yields the rows.
        runner: runs the chain; None if it cannot run.
        rows: the rows so far.
        earlier_rows: number of those that earlier calls have returned.
        ended: whether there are no further rows.
    """

    key: tuple[Any, ...]
    request: RecordedRequest
    versions: Sequence[str]
    outcome: ReplayedRequest
    play: Iterator[ComparedRow] = field(default_factory=lambda: iter(()))
    runner: ChainRunner | None = None
    rows: list[ShownRow] = field(default_factory=list)
    earlier_rows: int = 0
    ended: bool = False

    def advance(self, deadline: float, texts: Mapping[int, str]) -> None:
        """Run until this time, and at least one row."""
        self.earlier_rows = len(self.rows)
        while not self.ended:
            row = next(self.play, None)
            if row is not None:
                self.rows.append(show_row(row, texts))
                self.outcome.add(row)
            self.ended = row is None or bool(row.error) or len(self.rows) == MAX_ROWS
            if time.perf_counter() > deadline:
                break

    def close(self) -> None:
        """End all workers."""
        if self.runner is not None:
            self.runner.close()
