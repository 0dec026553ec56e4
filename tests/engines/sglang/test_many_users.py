"""Twenty users of SGLang's HTTP server, some of them hostile, and a restart of the service: `many_users.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from logitport.integrations.sglang import RemoteLogitProcessor
from tests.conftest import free_address
from tests.engines import many_users, many_users_checks
from tests.engines.many_users import LATE
from tests.engines.sglang.conftest import GUARDED, Engine, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.engines.crowd import Answer, User
    from tests.engines.many_users import Report

ROOM = ("--max-running-requests", "32", "--max-total-tokens", "16384")


@pytest.fixture(scope="module")
def report(
    sglang: Callable[..., AbstractContextManager[Engine]],
    serving: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Report]:
    """The answers that all users got."""
    store = tmp_path_factory.mktemp("many_users") / "store"
    options = (*many_users.SERVICE, "--listen", free_address(), "--store", str(store))
    with serving(*options) as service:
        many_users.register(service.target)
        with sglang(GUARDED, *ROOM, LOGITPORT_TARGET=service.target, **many_users.VARIABLES) as engine:
            yield many_users.play(
                lambda user, answer: ask(engine, user, answer),
                service,
                lambda: serving(*options),
                refuses_new=False,
                admission_status=400,  # SGLang has no other one there
            )


def ask(engine: Engine, user: User, answer: Answer) -> None:
    """Send the user's request to SGLang."""
    processor = custom = None
    if user.chain is not None:
        processor, custom = RemoteLogitProcessor.to_str(), {"logitport": user.chain}
    options: dict[str, Any] = {"max_new_tokens": user.length, "stream": user.streams, "headers": user.headers}
    if user.samples > 1:  # greedy all the same
        options |= {"n": user.samples, "temperature": 1.0, "top_k": 1}
    try:
        with engine.post(list(user.prompt), processor, custom, **options) as response:
            answer.status = response.status
            if user.streams:
                _read_stream(response, user, answer)
            else:
                body = json.load(response)
                for index, sample in enumerate(body if isinstance(body, list) else [body]):
                    _set(answer, index, sample)
    except Refused as error:
        answer.status, answer.error = error.status, str(error)


def _read_stream(response: Any, user: User, answer: Answer) -> None:
    for line in response:
        if line.startswith(b"data: {"):
            answer.note_event()
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                answer.error = event["error"]["message"]
            else:
                _set(answer, event.get("index", 0), event)
            if user.leaves_after == len(answer.arrivals):
                return


def _set(answer: Answer, index: int, sample: Any) -> None:
    """Events hold all ids so far."""
    answer.rows[index] = sample["output_ids"]
    reason = sample["meta_info"]["finish_reason"]
    if reason:
        answer.finished[index] = reason["type"]
        if reason["type"] == "abort":
            answer.error = reason["message"]


@pytest.mark.parametrize("check", many_users_checks.CHECKS)
def test_many_users(report: Report, check: Callable[[Report], None]) -> None:
    check(report)


def test_requests_while_the_service_is_away_wait(report: Report) -> None:
    """SGLang's scheduler waits for the service in a step, and admits them when it is back."""
    assert not report.late_before
    for user in LATE:
        answer = report.late[user.name]
        assert answer.succeeded, answer.error
        if user.name in report.alone:
            assert answer.rows == report.alone[user.name].rows
