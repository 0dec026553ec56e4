"""The log of a running server, as text and as JSON."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import AccessDenied, Client, EditProcessor, EditRequest, InvalidArgument, Request, RowEdits
from logitport_server import logs
from logitport_server.access import new_token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.conftest import RunningServer


class Bans(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


class Leaves(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(1)


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("logitport_server.x", logging.WARNING, "", 0, "lost %s\n%s", ("ünï", "two"), None)
    made.__dict__.update(fields)
    return made


def test_json_has_one_object_a_line_with_the_fields_of_the_event() -> None:
    line = logs.formatter("json").format(record(event="worker_lost", processor="sha256:1", rows=3))
    assert "\n" not in line
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", found.pop("time"))
    assert found == {
        "level": "WARNING",
        "process": os.getpid(),
        "logger": "logitport_server.x",
        "message": "lost ünï\ntwo",
        "event": "worker_lost",
        "processor": "sha256:1",
        "rows": 3,
    }


def test_json_is_one_line_whatever_the_caller_sends_with_tracebacks_in_a_field() -> None:
    error = ValueError("bad")
    sent = "r\u2028{}\u0085\x9b31m\ud800"
    line = logs.formatter("json").format(record(request_id=sent, exc_info=(ValueError, error, None)))
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["request_id"] == sent
    assert json.loads(line)["exception"].endswith("ValueError: bad")


def test_text_has_the_message_alone() -> None:
    line = logs.formatter("text").format(record(event="worker_lost"))
    assert line.endswith(f" WARNING logitport_server.x[{os.getpid()}]: lost ünï\ntwo")


def test_text_has_no_control_characters() -> None:
    made = record()
    made.args = ("\x1b[2J\x9b31m", "\u2028\ud800\r")
    assert logs.formatter("text").format(made).endswith(": lost \\x1b[2J\\x9b31m\n\\u2028\\ud800\\r")


@pytest.mark.slow
def test_a_call_without_its_scope_has_its_principal(
    serving: Callable[..., AbstractContextManager[RunningServer]], tmp_path: Path
) -> None:
    token, grant = new_token("team/ci", ["register"])
    (tmp_path / "tokens").write_text(grant.line)
    with serving("--log-format", "json", "--tokens", str(tmp_path / "tokens")) as server:
        for sent, error in ((token, AccessDenied), ("unknown", AccessDenied)):
            with Client(server.target, token=sent) as client, pytest.raises(error):
                client.servers()[0].status()
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    refused = [line for line in lines if line.get("event") == "call_refused"]
    assert [(line["error"], line.get("principal")) for line in refused] == [
        ("AccessDenied", "team/ci"),
        ("AccessDenied", None),
    ]


@pytest.mark.slow
def test_a_server_logs_events_as_json(serving: Callable[..., AbstractContextManager[RunningServer]]) -> None:
    """Each line of stderr is an object; sessions, registrations and refusals have their fields."""
    options = ("--log-format", "json", "--log-level", "Debug", "--enable-custom-logit-processor")
    with serving(*options, "--quarantine-after", "1") as server:
        with Client(server.target) as client:
            digest = client.register(Bans, name="team/bans").digest
            with client.session(vocab_size=8, engine="tëst 1") as session:
                handle = session.add(Request([1], processors=[("team/bans", {})]))
                session.step({handle: []}).apply(np.zeros((1, 8), np.float32))
                wrong = [("disallowed_tokens", {"token_ids": "x"})]
                with pytest.raises(InvalidArgument):
                    session.add(Request([1], processors=wrong, request_id="rëq\n1"))
                leaving = session.add(Request([1], processors=[(Leaves.to_str(), {})]))
                session.step({leaving: []}).apply(np.zeros((1, 8), np.float32), check=False)
            client.delete("team/bans")
        wait_until(lambda: "session_closed" in server.log.read_text())
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    events: dict[str, dict[str, Any]] = {line["event"]: line for line in lines if "event" in line}
    opened = events["session_opened"]
    assert opened["engine"] == "tëst 1"
    assert events["session_closed"]["session"] == opened["session"]
    assert events["session_closed"]["seconds"] >= 0
    assert events["requests_refused"]["session"] == opened["session"]
    assert events["requests_refused"]["code"] == "INVALID_ARGUMENT"
    assert events["requests_refused"]["request_id"] == "rëq\n1"
    for event in ("session_opened", "session_closed", "requests_refused", "worker_lost"):
        assert events[event]["session"] == opened["session"]
        assert events[event]["engine"] == opened["engine"]
        assert events[event]["principal"] == ""
    quarantined = events["quarantined"]  # the front door logs it: a quarantine concerns all sessions of a trust domain
    assert (quarantined["principal"], quarantined["processor"]) == ("", events["worker_lost"]["processor"])
    assert events["processor_registered"]["processor"] == digest
    assert events["processor_registered"]["processor_name"] == "team/bans"
    assert events["processor_deleted"]["processor"] == "team/bans"
    assert {line["level"] for line in lines} == {"DEBUG", "INFO", "WARNING", "ERROR"}
    assert {line["logger"].partition("_")[0] for line in lines} == {"logitport"}, "libraries write lines of their own"
