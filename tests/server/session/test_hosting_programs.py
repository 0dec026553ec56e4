"""Programs that requests of one session ship, with and without signatures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from logitport.core.history import History
from logitport.payload import Payload, Signature
from logitport_proto import common_pb2, processing_pb2
from logitport_session.dialects.program_dialect import ProgramDialect
from logitport_session.processor_sources.source import Source
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.requests.loaded_processors import LoadedProcessors
from logitport_session.steps.engine_programs import write_programs
from logitport_session.trust.principals import ANONYMOUS
from tests.programs.runtime import build

VERIFIED = build.temperature()
PROGRAM = VERIFIED.program
SIGNATURE = Signature("0" * 64, "", 1 << 32, bytes(64))


def test_a_request_has_its_own_signature_for_a_program_that_others_ship_too() -> None:
    sent: list[Signature | None] = []

    def resolve(*_: Any) -> Source:
        shipped = Payload(PROGRAM.to_bytes(), PROGRAM.digest, signature=sent[-1], is_program=True)
        return Source(PROGRAM.digest, payload=shipped, program=VERIFIED)

    def load(source: Source) -> ProgramDialect:
        assert source.program is not None
        return ProgramDialect(source.program, source.display_name, source.signature)

    registry: Any = SimpleNamespace(resolve=resolve)
    executor: Any = SimpleNamespace(load=load)
    loaded = LoadedProcessors(registry, executor, ANONYMOUS)
    found = []
    for signature in (None, SIGNATURE, None, SIGNATURE):
        sent.append(signature)
        found.append(loaded.load(common_pb2.Processor(), "", 0))
    assert [dialect.signature for dialect in found] == sent
    assert found[:2] == found[2:]

    requests = [
        ActiveRequest(slot, 0, History([1]), [ChainEntry(dialect.for_engine() or dialect, None)], skip=False)
        for slot, dialect in enumerate(found[:3])
    ]
    reply = processing_pb2.Programs()
    write_programs(requests, [PROGRAM.digest], 1 << 20, reply)
    assert b'"expires"' in reply.signatures[0]
