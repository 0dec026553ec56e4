"""Runs the requests of a recording again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, LogitportError
from logitport_proto.processing_pb2 import OpenSession
from logitport_recording.reading.event_fields import display_name
from logitport_testing.replaying.compared_rows import PartPlayer
from logitport_testing.replaying.replacement import named_replacements, replaced_chain
from logitport_testing.replaying.row_difference import best_of, known_ids
from logitport_testing.runner import load_backend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from logitport_recording.reading.reader import RecordedRequest, Recording
    from logitport_testing.replaying.compared_rows import ComparedRow
    from logitport_testing.replaying.replacement import Replacement
    from logitport_testing.runner import ChainRunner

_BEST_IDS = 5
_TOKENIZER = "recorded"  # of sessions that name none


@dataclass
class ReplayedRequest:
    """A request that ran again.

    Attributes:
        request_id: the engine's name for it.
        chain: the names of its processors, as they ran.
        rows: the rows that differ, as JSON data.
        compared: number of rows that were compared.
        not_compared: number of rows without recorded edits or logits.
        chosen_denied: number of rows where the new version denies the id that the engine chose.
        error: why the new version does not run, refuses or ends the request; "" if it does not.
    """

    request_id: str
    chain: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    compared: int = 0
    not_compared: int = 0
    chosen_denied: int = 0
    error: str = ""

    @property
    def differs(self) -> bool:
        """Whether the new version has another effect."""
        return bool(self.rows or self.error)

    @property
    def summary(self) -> str:
        """The result in one line."""
        error = self.error.split("\n\n")[0]  # without a remote traceback
        if not self.compared:
            missing = f"{self.not_compared} rows without recorded edits or logits"
            return f"not compared: {error or (missing if self.not_compared else 'no row was recorded')}"
        differ = f"differs in {len(self.rows)} of" if self.rows else "no difference in"
        parts = [f"{differ} {self.compared} rows"]
        parts += [f"{self.not_compared} without recorded edits or logits not compared"] if self.not_compared else []
        parts += [f"{self.chosen_denied} chosen ids denied"] if self.chosen_denied else []
        return ", ".join(parts) + (f"; the new version fails: {error}" if error else "")

    def add(self, row: ComparedRow) -> None:
        """Count a row, and keep it if it differs."""
        self.compared += row.compared
        self.not_compared += not row.compared
        self.chosen_denied += row.chosen_denied
        self.error = self.error or row.error
        if row.differs:
            self.rows.append(_row_to_json(row))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {**vars(self), "chain": list(self.chain), "differs": self.differs}


@dataclass
class Replay:
    """A recording that ran again.

    Attributes:
        requests: those with a place for the new version in their chain.
        left_out: number of other requests.
    """

    requests: list[ReplayedRequest]
    left_out: int = 0

    @property
    def differs(self) -> bool:
        """Whether the new version has another effect in any request."""
        return any(request.differs for request in self.requests)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "differs": self.differs,
            "requests": [request.to_json() for request in self.requests],
            "left_out": self.left_out,
            "compared": sum(request.compared for request in self.requests),
            "not_compared": sum(request.not_compared for request in self.requests),
            "rows_that_differ": sum(len(request.rows) for request in self.requests),
        }


def replay(
    recording: Recording,
    replacements: Sequence[Replacement],
    *,
    request_id: str | None = None,
    tokenizer: Path | None = None,
    run_payloads: bool = False,
) -> Replay:
    """Run the recorded requests with new processors, on the recorded histories, and compare.

    The histories stay the recorded ones: where the new version would have led to another id, later steps do not follow.

    Args:
        recording: as `read_recording` returns it.
        replacements: the new processors.
        request_id: only requests with this id; None for all.
        tokenizer: a tokenizer.json, or a folder with one, for processors that use their session's, or None.
        run_payloads: whether to run the code of recorded processors that no replacement replaces. It runs in this
            process, without a sandbox: only for recordings that you trust.

    Raises:
        InvalidArgument: no request has this id, or a chain that a replacement fits; a replacement without a name fits
            several processors; or a processor is not recorded.
        PayloadError: a chain needs the code of a recorded processor, and `run_payloads` is false.
        NotInstalled: the server is not installed.
    """
    chosen = [
        (session.began.opening, request)
        for session in recording.sessions
        for request in session.requests
        if request_id is None or request.began.request.request_id == request_id
    ]
    if not chosen:
        raise InvalidArgument("the recording has no request" + ("" if request_id is None else f" {request_id!r}"))
    replacements = named_replacements(replacements, [request.began.processors for _, request in chosen])
    result = Replay([])
    tokenizers = session_tokenizers((opening for opening, _ in chosen), tokenizer)
    with load_backend().open_runner("here", None, tokenizers) as runner:
        for recorded, request in chosen:
            opening = with_tokenizer(recorded) if tokenizers else recorded
            chain = replaced_chain(request.began.processors, replacements, run_payloads=run_payloads)
            if chain is None:
                result.left_out += 1
            else:
                replayed = ReplayedRequest(request.began.request.request_id)
                result.requests.append(replayed)
                for row in replay_rows(runner, opening, request, chain, replayed):
                    replayed.add(row)
    if not result.requests:
        chains = {", ".join(display_name(one) for one in request.began.processors) for _, request in chosen}
        raise InvalidArgument(
            "no recorded chain has one place for the new version; name the processor that it replaces, as in --with "
            f"NAME=FILE.py:CLASS. The chains are: {'; '.join(sorted(chains))}"
        )
    return result


def replay_rows(
    runner: ChainRunner,
    opening: OpenSession,
    request: RecordedRequest,
    chain: Sequence[tuple[Any, Any]],
    result: ReplayedRequest,
) -> Iterator[ComparedRow]:
    """Run a request with a chain, and yield its rows. A row with an error is the last one.

    The result gets the names of the chain, and the error of a version that refuses the request.
    """
    try:
        for part in request.parts:
            player = PartPlayer(runner, opening, part, chain)
            result.chain = player.chain
            for row in player.rows():
                yield row
                if row.error:
                    return
    except LogitportError as error:  # of the admission
        result.error = str(error)


def session_tokenizers(sessions: Iterable[OpenSession], path: Path | None) -> dict[str, Path]:
    """Return the file of each name that the sessions, after `with_tokenizer`, have; {} without a file."""
    return {} if path is None else {with_tokenizer(opening).tokenizer_id: path for opening in sessions}


def with_tokenizer(opening: OpenSession) -> OpenSession:
    """Return a session that names a tokenizer: its own, or else one for all that name none."""
    named = OpenSession(tokenizer_id=_TOKENIZER)
    named.MergeFrom(opening)
    return named


def _row_to_json(row: ComparedRow) -> dict[str, Any]:
    tops: dict[str, list[tuple[int, float]] | None] = dict.fromkeys(("before", "recorded", "new"))
    ids = known_ids(row.row)
    if ids.size and row.difference is not None:
        rows = {"before": row.before, "recorded": row.recorded, "new": row.new}
        tops = {name: None if one is None else best_of(one, ids, _BEST_IDS) for name, one in rows.items()}
    return {
        "step": row.step.index,
        "offset": row.row.draft_offset,
        "length": len(row.history),
        "chosen": row.chosen,
        "chosen_denied": row.chosen_denied,
        "error": row.error,
        "recorded_error": row.step.error if row.difference is None else "",
        "difference": None if row.difference is None else row.difference.to_json(),
        **tops,
    }
