"""Traces of a real server, as a collector receives them, and the client's spans that they continue."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider

from logitport import Client, EditProcessor, EditRequest, InvalidArgument, Request, RowEdits
from tests.collector import Collector, Received, collecting
from tests.conftest import COMMAND, environment, free_address
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunningServer

    Start = Callable[..., RunningServer]

VOCAB = 50_000
# As token ids and as parameters: they must not be found in any span.
SECRET = 31_337
SERVER_KIND = 2


class Bans(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([1])


def export_to(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in collector.variables.items():
        monkeypatch.setenv(name, value)


def one(collector: Collector, name: str, **attributes: Any) -> Received:
    """The span of this name and these attributes, as soon as it has arrived."""
    wanted = {f"logitport.{key}": value for key, value in attributes.items()}.items()

    def found() -> list[Received]:
        return [span for span in collector.named(name) if wanted <= span.attributes.items()]

    wait_until(found, lambda: f"no {name} {attributes} in {collector.spans}")
    (span,) = found()
    return span


def processor(span: Received) -> str:
    """The class of the span's processor, without its digest."""
    name: str = span.attributes["logitport.processor"]
    return name.split(maxsplit=1)[0]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_an_engines_trace_continues(protocol: str, start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("engine")
    with collecting(protocol) as collector:
        export_to(collector, monkeypatch)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        server = start_server("--enable-custom-logit-processor")
        with ExitStack() as stack:
            client = stack.enter_context(Client(server.target))
            with tracer.start_as_current_span("engine starts") as start:
                client.register(Bans, name="team/bans")
                session = stack.enter_context(client.session(vocab_size=VOCAB, engine="test 1"))
            with tracer.start_as_current_span("request") as request:
                chain = [("disallowed_tokens", {"token_ids": [SECRET]}), ("team/bans", {})]
                handle = session.add(Request([SECRET, 2], processors=chain, request_id="r1"))
            logits = np.zeros((1, VOCAB), np.float32)
            session.step({handle: []}).apply(logits)
            with tracer.start_as_current_span("refused") as refused, pytest.raises(InvalidArgument):
                session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": f"x{SECRET}"})]))
            with tracer.start_as_current_span("applied") as applied:
                client.apply(logits, [Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})])])
            session_id = session.session_id
        closed = one(collector, "session close", session=session_id)

        def ids(span: Any) -> tuple[str, str]:
            context = span.get_span_context()
            return f"{context.trace_id:032x}", f"{context.span_id:016x}"

        opened = one(collector, "session open")
        assert (opened.trace_id, opened.parent_id) == ids(start)
        assert opened.kind == SERVER_KIND
        assert (closed.trace_id, closed.parent_id) == (opened.trace_id, opened.span_id)
        assert opened.attributes == {
            "rpc.system.name": "grpc",
            "rpc.method": "logitport.v1.LogitProcessing/Session",
            "logitport.session": session_id,
            "logitport.principal": "",
            "logitport.engine": "test 1",
        }
        registered = one(collector, "logitport.v1.ProcessorRegistry/Register")
        assert (registered.trace_id, registered.parent_id) == ids(start)
        assert registered.attributes["rpc.response.status_code"] == "OK"

        admitted = one(collector, "request admission", request_id="r1")
        assert (admitted.trace_id, admitted.parent_id) == ids(request)
        assert admitted.links == [opened.span_id]
        assert not admitted.is_error
        parts = [span for span in collector.spans if span.parent_id == admitted.span_id]
        assert [span.name for span in parts] == ["processor load"] * 2 + ["history replay"] * 2
        assert [span.attributes["logitport.processor"].split()[0] for span in parts] == [
            "disallowed_tokens",
            "Bans",
        ] * 2

        step = one(collector, "step", session=session_id)
        assert not step.parent_id
        assert step.links == [opened.span_id, admitted.span_id]
        assert step.attributes["logitport.rows"] == 1
        assert step.attributes["logitport.transport"] == "local"
        calls = [span for span in collector.spans if span.parent_id == step.span_id]
        found = {
            span.attributes["logitport.processor"].split()[0]: span.attributes["logitport.where"] for span in calls
        }
        assert found == {"disallowed_tokens": "server", "Bans": "worker"}

        wrong = next(span for span in collector.named("request admission") if span.is_error)
        assert (wrong.trace_id, wrong.parent_id) == ids(refused)
        assert wrong.attributes["error.type"] == "INVALID_ARGUMENT"
        load = next(span for span in collector.spans if span.parent_id == wrong.span_id)
        assert load.is_error

        call = one(collector, "logitport.v1.LogitProcessing/Apply")
        assert (call.trace_id, call.parent_id) == ids(applied)
        work = one(collector, "apply")  # in the process of the principal
        assert (work.trace_id, work.parent_id) == (call.trace_id, call.span_id)
        below = {span.name for span in collector.spans if span.parent_id == work.span_id}
        assert below == {"request admission", "processor call"}

        assert str(SECRET) not in repr(collector.spans)
        assert {span.resource["service.name"] for span in collector.spans} == {"logitport"}
        assert {span.resource["logitport.server"] for span in collector.spans} == {server.target}


def test_each_server_exports(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting("http/protobuf") as collector:
        export_to(collector, monkeypatch)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "our name")
        addresses = [start_server().target for _ in range(2)]
        for address in addresses:
            with Client(address) as client:
                client.processors()
        wait_until(lambda: len(collector.spans) == 2)
        assert {span.resource["logitport.server"] for span in collector.spans} == {*addresses}
        assert {span.resource["service.name"] for span in collector.spans} == {"our name"}
        assert len({span.resource["service.instance.id"] for span in collector.spans}) == 2


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_does_not_answer_disturbs_nothing(
    protocol: str, start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is full, exports fail, and the last export would be repeated for longer than the server waits."""
    export_to(Collector(protocol, f"http://{free_address()}"), monkeypatch)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    server = start_server("--log-format", "json")
    with Client(server.target) as client, client.session(vocab_size=8) as session:
        handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
        for _ in range(50):
            logits = np.zeros((1, 8), np.float32)
            session.step({handle: []}).apply(logits)
            assert logits[0, 3] == -np.inf
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 30
    assert len(server.log.read_text().splitlines()) < 30


def test_variables_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "thrift")
    command = [COMMAND, "serve", "--listen", "127.0.0.1:0", "--device", "cpu"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'thrift'; write grpc or http/protobuf" in ended.stderr.splitlines()[-1]
