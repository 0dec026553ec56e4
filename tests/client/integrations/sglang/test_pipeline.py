"""Failures and reports of the last stage of a pipeline reach all stages. tests/engines/sglang has a real pipeline."""

from __future__ import annotations

import sys
from http import HTTPStatus
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from logitport.integrations.sglang import meta_info, pipeline
from logitport.report import Report
from tests.client.integrations.sglang.test_hook import Req

SENT = {"next_token_ids": [7, 8]}


class FinishAbort:
    def __init__(self, message: str, status_code: HTTPStatus | None = None, err_type: str | None = None) -> None:
        self.message, self.status_code, self.err_type = message, status_code, err_type


class SchedulerPPMixin:
    """The two methods of SGLang's class at the ends of the ring."""

    def _pp_prepare_tensor_dict(self, result: object, batch: Any) -> dict[str, Any]:
        return dict(SENT)

    def _pp_prep_batch_result(self, batch: Any, metadata: object, entries: Any) -> Any:
        return [req.to_finish for req in batch.reqs], entries.tensors["next_token_ids"]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> tuple[SchedulerPPMixin, SchedulerPPMixin]:
    """Return the last stage and the first one."""
    for name in ("_pp_prepare_tensor_dict", "_pp_prep_batch_result"):
        monkeypatch.setattr(SchedulerPPMixin, name, getattr(SchedulerPPMixin, name))
    for name, content in {
        "sglang.srt.managers.scheduler_pp_mixin": {"SchedulerPPMixin": SchedulerPPMixin},
        "sglang.srt.managers.schedule_batch": {"FINISH_ABORT": FinishAbort},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    pipeline.install()
    return SchedulerPPMixin(), SchedulerPPMixin()


def batch(*names: str) -> Any:
    return SimpleNamespace(reqs=[Req([1], rid=name) for name in names])


def test_a_failure_reaches_the_other_stages(stages: tuple[SchedulerPPMixin, SchedulerPPMixin]) -> None:
    last, first = stages
    here, there = batch("a", "b"), batch("a", "b")
    here.reqs[1].to_finish = FinishAbort("logitport: NotFound: x", HTTPStatus.BAD_REQUEST, "BadRequestError")
    entries = SimpleNamespace(tensors=last._pp_prepare_tensor_dict(None, here))

    ends, ids = first._pp_prep_batch_result(there, None, entries)
    assert ids == [7, 8]
    assert ends[0] is None
    assert vars(ends[1]) == vars(here.reqs[1].to_finish)

    # The first stage sends the same entries to a middle one.
    assert first._pp_prep_batch_result(batch("b"), None, entries)[0][0].message == "logitport: NotFound: x"


def test_a_stage_that_ends_a_request_itself_keeps_its_reason(
    stages: tuple[SchedulerPPMixin, SchedulerPPMixin],
) -> None:
    last, first = stages
    here, there = batch("a", "b"), batch("a", "b")
    for req in here.reqs:
        req.to_finish = FinishAbort("of the last stage")
    there.reqs[0].to_finish = own = FinishAbort("own")
    there.reqs[1].ended = True
    ends, _ = first._pp_prep_batch_result(
        there, None, SimpleNamespace(tensors=last._pp_prepare_tensor_dict(None, here))
    )
    assert ends == [own, None]


def test_without_failures_nothing_more_is_sent(stages: tuple[SchedulerPPMixin, SchedulerPPMixin]) -> None:
    last, first = stages
    here = batch("a", "b")
    here.reqs[0].to_finish = SimpleNamespace()  # another end of SGLang's
    assert last._pp_prepare_tensor_dict(None, here) == SENT
    assert first._pp_prep_batch_result(batch("a"), None, SimpleNamespace(tensors=SENT))[0] == [None]


def test_reports_reach_the_first_stage(
    stages: tuple[SchedulerPPMixin, SchedulerPPMixin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a report is sent where more than the number of its rows is new."""
    last, first = stages
    here, there = batch("a", "b"), batch("b", "a")
    handle = SimpleNamespace(report=Report((), 1))
    meta_info.remember(here.reqs[0], handle)  # type: ignore[arg-type]
    monkeypatch.setattr(meta_info, "_installed", SimpleNamespace(is_set=lambda: False))
    assert last._pp_prepare_tensor_dict(None, here) == SENT, "responses show no reports"

    monkeypatch.setattr(meta_info, "_installed", SimpleNamespace(is_set=lambda: True))
    sent = []
    for report in (Report((), 1), Report((), 2), Report((), 3, error="ProcessorFailed")):
        handle.report = report
        entries = last._pp_prepare_tensor_dict(None, here)
        sent.append(entries["__logitport_reports__"]["a"])
        first._pp_prep_batch_result(there, None, SimpleNamespace(tensors=entries))
        there.reqs[1].ended = False
        assert meta_info._report(there.reqs[1]) == []
        there.reqs[1].ended = True
        assert meta_info._report(there.reqs[1]) == [report.to_json()]
    assert [type(one) for one in sent] == [dict, int, dict]
    assert meta_info._report(there.reqs[0]) == []
