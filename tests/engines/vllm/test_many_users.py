"""Twenty users of vLLM's HTTP server, some of them hostile, and a restart of the service: `many_users.py`."""

from __future__ import annotations

import json
import urllib.error
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import free_address
from tests.engines import many_users, many_users_checks
from tests.engines.many_users import KNOWN_LATE, NEW_LATE, PLAIN_LATE
from tests.engines.vllm.http import run_http_server, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.engines.crowd import Answer, User
    from tests.engines.many_users import Report

# The fixture is part of the first test.
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def report(checkpoint: Path, serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    """The answers that all users got."""
    folder = tmp_path_factory.mktemp("many_users")
    options = (*many_users.SERVICE, "--listen", free_address(), "--store", str(folder / "store"))
    with serving(*options) as service:
        many_users.register(service.target)
        variables = {"LOGITPORT_TARGET": service.target, **many_users.VARIABLES}
        middleware = ("--middleware", "logitport.integrations.vllm.Middleware")
        with run_http_server(checkpoint, folder / "vllm", variables, *middleware) as url:
            yield many_users.play(
                lambda user, answer: ask(url, user, answer), service, lambda: serving(*options), refuses_new=True
            )


def ask(url: str, user: User, answer: Answer) -> None:
    """Send the user's request to vLLM."""
    options: dict[str, Any] = {"prompt": list(user.prompt), "max_tokens": user.length, "ignore_eos": True}
    if user.chain is not None:
        options["vllm_xargs"] = {"logitport": json.dumps(user.chain)}
    if user.samples > 1:  # greedy all the same
        options |= {"n": user.samples, "temperature": 1, "top_k": 1}
    try:
        with stream(url, user.headers, **options, stream=user.streams) as response:
            answer.status = response.status
            if user.streams:
                _read_stream(response, user, answer)
            else:
                _add(answer, json.load(response))
    except urllib.error.HTTPError as error:
        with error:
            answer.status, answer.error = error.code, error.read().decode()


def _read_stream(response: Any, user: User, answer: Answer) -> None:
    for line in response:
        if line.startswith(b"data: {"):
            answer.note_event()
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                answer.error = event["error"]["message"]
            else:
                _add(answer, event)
            if user.leaves_after == len(answer.arrivals):
                return


def _add(answer: Answer, body: Any) -> None:
    for choice in body["choices"]:
        answer.rows.setdefault(choice["index"], []).extend(choice["token_ids"])
        if choice["finish_reason"]:
            answer.finished[choice["index"]] = choice["finish_reason"]


@pytest.mark.parametrize("check", many_users_checks.CHECKS)
def test_many_users(report: Report, check: Callable[[Report], None]) -> None:
    check(report)


def test_requests_while_the_service_is_away(report: Report) -> None:
    """A new chain is refused. One that was accepted within the last minute waits, as requests without a chain do."""
    new, known, plain = (report.late[user.name] for user in (NEW_LATE, KNOWN_LATE, PLAIN_LATE))

    assert report.late_before == {NEW_LATE.name}
    assert new.status == 503
    assert "ServerUnavailable" in new.error
    for user, answer in ((KNOWN_LATE, known), (PLAIN_LATE, plain)):
        assert answer.succeeded, answer.error
        assert answer.rows == report.alone[user.name].rows
