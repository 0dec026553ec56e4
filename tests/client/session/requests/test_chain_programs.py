"""Programs that a server names are fetched and verified: a client trusts no server."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, InvalidArgument, LimitExceeded, LogitportError, Request
from logitport.session import Handle
from logitport.session.requests import chain_programs
from logitport.session.requests.chain_programs import _MAX_KEPT, ChainPrograms
from logitport.session.requests.program_trust import LeftToServer, ProgramTrust
from logitport_programs.program import Program, Value
from logitport_proto import processing_pb2
from tests.programs.runtime import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import RunningServer

MIN_P, TEMPERATURE = build.min_p().program, build.temperature().program


class Server:
    """Sends the requested programs, or `reply`."""

    def __init__(self, *programs: Program, reply: Sequence[bytes] | None = None) -> None:
        self._programs = {program.digest: program.to_bytes() for program in programs}
        self._reply = reply
        self.requested: list[list[str]] = []

    def __call__(self, digests: Sequence[str]) -> processing_pb2.Programs:
        self.requested.append(list(digests))
        reply = [self._programs[digest] for digest in digests] if self._reply is None else self._reply
        return processing_pb2.Programs(programs=reply)


def chains(vocab_size: int = 100, mode: Any = "all", *, with_torch: bool = True, **options: Any) -> ChainPrograms:
    return ChainPrograms(vocab_size, ProgramTrust(mode), with_torch=with_torch, **options)


def handle(*params: dict[str, Any]) -> Handle:
    return Handle(0, 0, Request([1], processors=[("name", one) for one in params]))


def chain(*programs: Program | None) -> processing_pb2.AdmittedChain:
    digests = [program.digest if program is not None else "" for program in programs]
    return processing_pb2.AdmittedChain(processors=["key"] * len(digests), programs=digests)


def test_each_program_is_fetched_once() -> None:
    made, server = chains(), Server(MIN_P, TEMPERATURE)
    one = handle({"min_p": 0.5}, {"token_ids": [1]}, {})
    made.bind(one, chain(MIN_P, None, TEMPERATURE), server)
    assert [(call.verified.program.name, call.values) for call in one.programs] == [
        ("min_p", (0.5,)),
        ("temperature", (1.0,)),
    ]
    made.bind(handle({"min_p": 1}), chain(MIN_P), server)
    assert server.requested == [[MIN_P.digest, TEMPERATURE.digest]]


def test_programs_that_do_not_fit_into_one_reply() -> None:
    requested: list[int] = []
    other = build.top_k(5).program
    server = Server(MIN_P, TEMPERATURE, other)

    def fetch(digests: Sequence[str]) -> processing_pb2.Programs:
        requested.append(len(digests))
        if len(digests) > 1:
            raise LimitExceeded("request fewer in one frame")
        return server(digests)

    one = handle({"min_p": 0.5}, {}, {})
    chains().bind(one, chain(MIN_P, TEMPERATURE, other), fetch)
    assert [call.verified.program for call in one.programs] == [MIN_P, TEMPERATURE, other]
    assert requested == [3, 1, 2, 1, 1]

    def refuse(digests: Sequence[str]) -> processing_pb2.Programs:
        raise LimitExceeded("one is too large")

    with pytest.raises(LimitExceeded, match="one is too large"):
        chains().bind(handle({}), chain(MIN_P), refuse)


def test_a_wrong_digest_is_shown_in_one_line() -> None:
    forged = processing_pb2.AdmittedChain(processors=["key"], programs=["\n\x1b[2J" * 1000])
    with pytest.raises(InvalidArgument) as refused:
        chains().bind(handle({}), forged, Server(reply=[b""]))
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 200


UNVERIFIED = Program("wrong", (Value("logits"), Value("sum", (0,), axis=1)))


@pytest.mark.parametrize(
    ("program", "reply", "error", "message"),
    [
        (MIN_P, [], LogitportError, "0 programs instead of 1"),
        (MIN_P, [b"", b""], LogitportError, "2 programs instead of 1"),
        (MIN_P, [TEMPERATURE.to_bytes()], InvalidArgument, f"another digest than '{MIN_P.digest}'"),
        (UNVERIFIED, None, InvalidArgument, "the result of program 'wrong'"),
        (build.top_k(200).program, None, InvalidArgument, "for 100 logits"),
    ],
)
def test_programs_that_are_refused(program: Program, reply: Any, error: Any, message: str) -> None:
    one = handle({"min_p": 0.5})
    with pytest.raises(error, match=message):
        chains().bind(one, chain(program), Server(program, reply=reply))
    assert one.programs == ()


def test_the_length_of_a_chain_and_its_parameters_are_checked() -> None:
    with pytest.raises(LogitportError, match="2 programs for a chain of 1"):
        chains().bind(handle({}), chain(MIN_P, None), Server(MIN_P))
    with pytest.raises(InvalidArgument, match="min_p"):
        chains().bind(handle({"min_p": 7}), chain(MIN_P), Server(MIN_P))


def sums(count: int) -> Program:
    write = build.Writer()
    slow = write("logits")
    for _ in range(count):
        slow = write("cumsum", slow, axis=1)
    return write.verified(name="slow").program


@pytest.mark.parametrize("with_torch", [True, False])
def test_programs_that_may_take_long_are_left_to_the_server(with_torch: bool, caplog: pytest.LogCaptureFixture) -> None:
    made = chains(151_936, with_torch=with_torch)
    one, program = handle({}), sums(500)
    server = Server(program)
    for _ in range(2):
        with pytest.raises(LeftToServer):
            made.bind(one, chain(program), server)
    assert server.requested == [[program.digest]]
    (record,) = caplog.records
    assert "the server is to run a program: program 'slow' may take" in record.message
    made.bind(handle({"min_p": 0.1}), chain(MIN_P), Server(MIN_P))


def test_a_program_may_be_too_slow_for_numpy_alone() -> None:
    program = sums(100)
    chains(151_936).bind(handle({}), chain(program), Server(program))
    with pytest.raises(LeftToServer):
        chains(151_936, with_torch=False).bind(handle({}), chain(program), Server(program))


@pytest.mark.parametrize(
    ("mode", "with_torch", "expected"), [("all", True, True), ("off", True, False), ("all", False, False)]
)
def test_the_runtime_is_imported_in_the_background(mode: Any, with_torch: bool, expected: bool) -> None:
    thread = chains(mode=mode, with_torch=with_torch).prepare()
    assert (thread is not None) == expected
    if thread is not None:
        thread.join()


def test_a_runtime_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The first program raises the error again. Nothing is prepared before torch is imported."""
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        assert chains().prepare() is None
    monkeypatch.setitem(sys.modules, "logitport_programs.runtime", None)
    caplog.set_level("DEBUG", "logitport.session.requests.chain_programs")
    thread = chains().prepare()
    assert thread is not None
    thread.join()  # an error in a thread would be a warning, which fails
    assert "the runtime of programs could not be imported: ModuleNotFoundError" in caplog.text


def test_the_number_of_kept_programs_is_limited() -> None:
    made = chains(10_000)
    programs = [build.top_k(k).program for k in range(1, _MAX_KEPT + 2)]
    server = Server(*programs)
    for program in programs:
        made.bind(handle({}), chain(program), server)
    made.bind(handle({}), chain(programs[-1]), server)
    assert len(server.requested) == _MAX_KEPT + 1
    made.bind(handle({}), chain(programs[0]), server)
    assert len(server.requested) == _MAX_KEPT + 2


def test_a_session_prepares_programs(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = threading.Event()
    monkeypatch.setattr(chain_programs, "_import_runtime", imported.set)
    with Client(server.target) as client, client.session(vocab_size=10, dtype=torch.float32):
        assert imported.wait(60)


def test_the_programs_of_a_step_may_take_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests of an engine wait for a step."""
    monkeypatch.setattr(chain_programs, "check_cost", lambda *_, **__: 150.0)
    made, server = chains(rows=4), Server(MIN_P)
    held = [handle({"min_p": 0.1}) for _ in range(4)]
    for one in held[:3]:
        made.bind(one, chain(MIN_P), server, held)
    with pytest.raises(LeftToServer):
        made.bind(held[3], chain(MIN_P), server, held)
    assert held[3].programs == ()
    made.bind(held[0], chain(MIN_P), server, held)  # sent again
    made.bind(held[3], chain(MIN_P), server, held[2:])  # after others were removed
