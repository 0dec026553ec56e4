"""Ends a failed request in all stages of a pipeline, and shows reports: the last stage samples, the first answers.

With each batch's sampled ids, the last stage sends a dict around the ring of stages. The failures are one more entry,
and the reports another one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from logitport.integrations.sglang import meta_info

if TYPE_CHECKING:
    from collections.abc import Callable

# The entries: by the name of a request, the arguments of its FINISH_ABORT, and `meta_info.to_stages`.
_FAILURES = "__logitport_failures__"
_REPORTS = "__logitport_reports__"


def install() -> None:
    """Patch the scheduler in this process."""
    from sglang.srt.managers.scheduler_pp_mixin import SchedulerPPMixin

    SchedulerPPMixin._pp_prepare_tensor_dict = _wrap_prepare(SchedulerPPMixin._pp_prepare_tensor_dict)
    SchedulerPPMixin._pp_prep_batch_result = _wrap_read(SchedulerPPMixin._pp_prep_batch_result)


def _wrap_prepare(prepare: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(prepare)
    def wrapped(scheduler: Any, result: Any, batch: Any) -> dict[str, Any]:
        """Add the requests of the batch that end by an error, and the reports, to what the last stage sends."""
        entries = prepare(scheduler, result, batch)
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        ends = {req.rid: req.to_finish for req in batch.reqs if isinstance(req.to_finish, FINISH_ABORT)}
        failures = {name: (end.message, end.status_code, end.err_type) for name, end in ends.items()}
        reports = {req.rid: sent for req in batch.reqs if (sent := meta_info.to_stages(req)) is not None}
        return entries | ({_FAILURES: failures} if failures else {}) | ({_REPORTS: reports} if reports else {})

    return wrapped


def _wrap_read(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def wrapped(scheduler: Any, batch: Any, metadata: Any, entries: Any) -> Any:
        """End the requests that the last stage ended. The entries stay: this stage sends them to the next one."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        failures, reports = entries.tensors.get(_FAILURES, {}), entries.tensors.get(_REPORTS, {})
        for req in batch.reqs:
            if req.rid in reports:
                meta_info.from_last_stage(req, reports[req.rid])
            if req.rid in failures and req.to_finish is None and not req.finished():
                req.to_finish = FINISH_ABORT(*failures[req.rid])
        return read(scheduler, batch, metadata, entries)

    return wrapped
