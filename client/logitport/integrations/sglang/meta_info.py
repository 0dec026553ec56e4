"""Adds the reports of requests to the `meta_info` of SGLang's responses, under the key "logitport"."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from logitport.integrations.common import environment
from logitport.integrations.common.chains import KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.session import Handle

# Where a request of the scheduler holds its handle, and in a pipeline the report that its last stage has sent.
_HANDLE = "logitport_handle"
_REPORT = "logitport_report"

# Whether responses show reports.
_installed = threading.Event()


def remember(req: Any, handle: Handle) -> None:
    """Let the output of a request show the report of this handle."""
    setattr(req, _HANDLE, handle)


def install() -> None:
    """Patch the scheduler's outputs and the front end's reading of them in this process.

    Not SGLang's `SamplingObserver`, of which an engine has one, and none with speculative decoding.
    """
    from sglang.srt.environ import envs
    from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    if envs.SGLANG_RUST_SERVER.get():  # refuses additional fields
        return
    _installed.set()
    build = SchedulerOutputStreamer.build_additional_customized_info
    SchedulerOutputStreamer.build_additional_customized_info = _wrap_build(build)
    SchedulerOutputStreamer.has_additional_customized_info = True
    TokenizerManager.update_request_meta_info = _wrap_update(TokenizerManager.update_request_meta_info)


def _wrap_build(build: Callable[..., dict[str, list[Any]]]) -> Callable[..., dict[str, list[Any]]]:
    @functools.wraps(build)
    def wrapped(streamer: Any, reqs: Sequence[Any]) -> dict[str, list[Any]]:
        """Add the reports of the requests that have ended. For each request a list, of one report or none."""
        fields = build(streamer, reqs)
        reports = [_report(req) for req in reqs]
        return {**fields, KEY: reports} if any(reports) else fields

    return wrapped


def _report(req: Any) -> list[dict[str, Any]]:
    if not req.finished():
        return []
    handle: Handle | None = getattr(req, _HANDLE, None)
    report = getattr(req, _REPORT, None) if handle is None else _shown(handle)
    return [] if report is None else [report]


def _shown(handle: Handle) -> dict[str, Any]:
    """Return the report of a request as responses show it."""
    return handle.report.to_json(with_params=environment.reports() == "full")


def to_stages(req: Any) -> dict[str, Any] | int | None:
    """Return what the last stage of a pipeline sends of the report: all of it, or `rows_applied` if only that is new.

    None if the responses show no report of this request.
    """
    handle: Handle | None = getattr(req, _HANDLE, None)
    if handle is None or not _installed.is_set():
        return None
    report, sent = _shown(handle), getattr(req, _REPORT, None)
    setattr(req, _REPORT, report)
    rows: int = report["rows_applied"]
    return rows if sent is not None and {**sent, "rows_applied": rows} == report else report


def from_last_stage(req: Any, sent: dict[str, Any] | int) -> None:
    """Set the report of a request to what `to_stages` returned in the last stage."""
    setattr(req, _REPORT, {**getattr(req, _REPORT), "rows_applied": sent} if isinstance(sent, int) else sent)


def _wrap_update(update: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(update)
    def wrapped(
        manager: Any, meta_info: dict[str, Any], state: Any, fields: dict[str, Any], index: int, *args: Any
    ) -> None:
        """Set the report of a request. SGLang would divide its list among the chunks of a stream, as one of tokens."""
        if KEY in fields:
            for report in fields[KEY][index]:
                meta_info[KEY] = report
            fields = {name: values for name, values in fields.items() if name != KEY}
        update(manager, meta_info, state, fields, index, *args)

    return wrapped
