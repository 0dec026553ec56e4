"""The reports of requests on their way to the responses of vLLM's front end."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logitport.core.row_events import RequestEvent, RowEvent
from logitport.errors import InvalidArgument
from logitport.report import ReportedProcessor
from logitport.session.report_log import ReportLog
from logitport.system.bounded import BoundedTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session import Handle

# Of requests that have begun. Those of other front ends, and of aborted requests, leave as the oldest ones.
_MAX_REQUESTS = 8192

# The reports for the response that this context makes. Tasks inherit it. None without the middleware.
response: ContextVar[ResponseReports | None] = ContextVar("logitport_response", default=None)


class ResponseReports:
    """Collects the reports of the requests of one HTTP response: one for each choice with a chain."""

    def __init__(self) -> None:
        self._prompts: list[object] = []
        self._by_choice: dict[int, dict[str, Any]] = {}

    def choice(self, queue: object, samples: int, sample: int) -> int:
        """Return the index of a sample among the choices. Each prompt has a queue, and as many samples."""
        prompt = next((index for index, one in enumerate(self._prompts) if one is queue), len(self._prompts))
        if prompt == len(self._prompts):
            self._prompts.append(queue)
        return prompt * samples + sample

    def add(self, choice: int, report: dict[str, Any]) -> None:
        """Add the report of a choice that has ended."""
        self._by_choice[choice] = {"index": choice, **report}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the reports of the choices that have ended, by index. Empty if none has a chain."""
        return [self._by_choice[choice] for choice in sorted(self._by_choice)]


class _ReportingRequest:
    """A request, and what its worker has sent of it."""

    def __init__(self, chain: Sequence[tuple[str, dict[str, Any]]]) -> None:
        self.chain = [(key, ReportedProcessor(**{"digest": "", **described})) for key, described in chain]
        self.log = ReportLog()


def began(request_id: str, handle: Handle, *, with_params: bool) -> dict[str, Any]:
    """Make the message of a worker about a request that was admitted."""
    chain = [(key, described.to_json(with_params=with_params)) for key, described in handle.described_chain]
    return {"began": [request_id, chain]}


def changed(request_id: str, position: int, events: Sequence[RequestEvent]) -> dict[str, Any]:
    """Make the message of a worker about the events from this position of the output on."""
    listed = [(key, at, name, values.decode(), left_out) for _, key, at, (name, values, left_out), _ in events]
    return {"changed": [request_id, position, listed]}


class RunningReports:
    """The requests whose workers have sent something, until they end."""

    def __init__(self) -> None:
        self._running: BoundedTable[str, _ReportingRequest] = BoundedTable(_MAX_REQUESTS)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running

    def __bool__(self) -> bool:
        return bool(self._running)

    def receive(self, message: dict[str, Any]) -> None:
        """Read a message of `began` or `changed`. It may arrive twice."""
        if "began" in message:
            request_id, chain = message["began"]
            if request_id not in self._running:
                self._running[request_id] = _ReportingRequest(chain)
        elif "changed" in message:
            request_id, position, events = message["changed"]
            running = self._running.get(request_id)
            if running is None:
                return
            running.log.keep_before(position)
            for key, at, name, values, left_out in events:
                with suppress(InvalidArgument):  # another version of logitport in the worker
                    running.log.add(RequestEvent(0, key, at, RowEvent(name, values.encode(), left_out)))

    def end(self, request_id: str, output_length: int) -> dict[str, Any] | None:
        """Return the report of a request that has ended, or None.

        All ids of its output were sampled with its chain, but those of skipped rows.
        """
        running = self._running.pop(request_id, None)
        if running is None:
            return None
        report = running.log.report(running.chain, output_length, output_length - 1)
        return replace(report, rows_applied=output_length - report.rows_skipped).to_json(with_params=True)
