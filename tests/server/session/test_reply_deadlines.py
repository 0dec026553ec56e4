"""The deadlines that a server states are limits of its own, and it states none where it has none."""

from __future__ import annotations

from typing import Any

import pytest

from logitport_builtins import BUILTINS
from logitport_proto import processing_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.config import ServerConfig
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.transports.session_stream import SessionStream
from logitport_session.steps.step_time import ReplyDeadlines, StepTime
from tests.session_streams import answer
from tests.toy_processors import AddOne

NONE = ReplyDeadlines(0.0, 0.0)


def test_of_built_ins_and_workers() -> None:
    config = ServerConfig(enable_custom_logit_processor=True, processor_timeout_seconds=3.0, load_timeout_seconds=7.0)
    stated = ReplyDeadlines.of(config, only_builtins=True)
    assert stated.add == 7.0
    time, waited = StepTime(3.0), 0.0
    while seconds := time.for_calls():
        time.spend(seconds)
        waited += seconds
    assert 3.0 < waited <= stated.step < 4.0


@pytest.mark.parametrize("shipped", [True, False])
def test_of_code_in_the_servers_process(shipped: bool) -> None:
    config = ServerConfig(enable_custom_logit_processor=shipped, isolation="none")
    assert (ReplyDeadlines.of(config, only_builtins=True) == NONE) == shipped
    assert ReplyDeadlines.of(config, only_builtins=False) == NONE


def test_the_reply_to_open(open_engine: Any) -> None:
    session = open_engine(10).session
    assert session.reply_deadlines == NONE  # it has processors that are installed for tests
    session.reply_deadlines = ReplyDeadlines(2.5, 10.0)
    opening = processing_pb2.OpenSession(vocab_size=10, datatype="FP32")
    stream = SessionStream(lambda _: session, SessionCounts(), None)
    opened = answer(stream, processing_pb2.SessionRequest(seq=1, open=opening), "grpc").opened
    assert (opened.step_deadline_seconds, opened.add_deadline_seconds) == (2.5, 10.0)


INSTALLED = [(BUILTINS, True), ({**BUILTINS, "tests.AddOne": AddOne}, False)]


@pytest.mark.parametrize(("installed", "only_builtins"), INSTALLED)
def test_which_processors_are_installed(installed: dict[str, Any], only_builtins: bool) -> None:
    policy = PayloadPolicy(allow_shipped=False, max_bytes=1)
    registry = LocalRegistry(policy, max_registered=1, max_owned=1, installed=installed)
    assert registry.installed.has_only_builtins == only_builtins
