"""Programs that a server names are fetched and verified: a client trusts no server."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, InternalError, InvalidArgument, InvalidParams, InvalidProgram, LimitExceeded, Request
from logitport.programs.cost import prices
from logitport.programs.cost.prices import NUMPY
from logitport.programs.program import Program, Value
from logitport.session import chain_programs
from logitport.session.chain_programs import _MAX_KEPT, ChainPrograms
from logitport.session.frames import Handle
from logitport.session.program_trust import LeftToServer, ProgramTrust
from logitport_proto import processing_pb2
from tests.client.programs.runtime import build

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


def handle(*params: dict[str, Any]) -> Handle:
    return Handle(0, 0, Request([1], processors=[("name", one) for one in params]))


def chain(*programs: Program | None) -> processing_pb2.AdmittedChain:
    digests = [program.digest if program is not None else "" for program in programs]
    return processing_pb2.AdmittedChain(processors=["key"] * len(digests), programs=digests)


def test_each_program_is_fetched_once() -> None:
    chains, server = ChainPrograms(100, ProgramTrust("all"), "cpu"), Server(MIN_P, TEMPERATURE)
    one = handle({"min_p": 0.5}, {"token_ids": [1]}, {})
    chains.bind(one, chain(MIN_P, None, TEMPERATURE), server)
    assert [(call.verified.program.name, call.values) for call in one.programs] == [
        ("min_p", (0.5,)),
        ("temperature", (1.0,)),
    ]
    chains.bind(handle({"min_p": 1}), chain(MIN_P), server)
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
    ChainPrograms(100, ProgramTrust("all"), "cpu").bind(one, chain(MIN_P, TEMPERATURE, other), fetch)
    assert [call.verified.program for call in one.programs] == [MIN_P, TEMPERATURE, other]
    assert requested == [3, 1, 2, 1, 1]

    def refuse(digests: Sequence[str]) -> processing_pb2.Programs:
        raise LimitExceeded("one is too large")

    with pytest.raises(LimitExceeded, match="one is too large"):
        ChainPrograms(100, ProgramTrust("all"), "cpu").bind(handle({}), chain(MIN_P), refuse)


def test_a_wrong_digest_is_shown_in_one_line() -> None:
    forged = processing_pb2.AdmittedChain(processors=["key"], programs=["\n\x1b[2J" * 1000])
    with pytest.raises(InvalidProgram) as refused:
        ChainPrograms(100, ProgramTrust("all"), "cpu").bind(handle({}), forged, Server(reply=[b""]))
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 200


def test_a_chain_without_programs() -> None:
    server, one = Server(), handle({})
    ChainPrograms(100, ProgramTrust("all"), "cpu").bind(one, processing_pb2.AdmittedChain(processors=["key"]), server)
    assert (one.programs, server.requested) == ((), [])


UNVERIFIED = Program("wrong", (Value("logits"), Value("sum", (0,), axis=1)))


@pytest.mark.parametrize(
    ("program", "reply", "error", "message"),
    [
        (MIN_P, [], InternalError, "0 programs instead of 1"),
        (MIN_P, [b"", b""], InternalError, "2 programs instead of 1"),
        (MIN_P, [TEMPERATURE.to_bytes()], InvalidProgram, f"another digest than '{MIN_P.digest}'"),
        (UNVERIFIED, None, InvalidProgram, "the result of program 'wrong'"),
        (build.top_k(200).program, None, InvalidProgram, "for 100 logits"),
    ],
)
def test_programs_that_are_refused(program: Program, reply: Any, error: Any, message: str) -> None:
    one = handle({"min_p": 0.5})
    with pytest.raises(error, match=message):
        ChainPrograms(100, ProgramTrust("all"), "cpu").bind(one, chain(program), Server(program, reply=reply))
    assert one.programs == ()


def test_a_chain_of_another_length() -> None:
    with pytest.raises(InternalError, match="2 programs for a chain of 1"):
        ChainPrograms(100, ProgramTrust("all"), "cpu").bind(handle({}), chain(MIN_P, None), Server(MIN_P))


def test_parameters_are_checked_here_too() -> None:
    with pytest.raises(InvalidParams, match="min_p"):
        ChainPrograms(100, ProgramTrust("all"), "cpu").bind(handle({"min_p": 7}), chain(MIN_P), Server(MIN_P))


@pytest.mark.parametrize("device", ["cpu", NUMPY])
def test_programs_that_may_take_long_are_left_to_the_server(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = ChainPrograms(100_000, ProgramTrust("all"), device)
    write = build.Writer()
    slow = write("logits")
    for _ in range(100):
        slow = write("cumsum", slow, axis=1)
    one, program = handle({}), write.verified(name="slow").program
    monkeypatch.setenv("LOGITPORT_PROGRAM_MILLISECONDS", "0.01")
    limited, server = ChainPrograms(100_000, ProgramTrust("all"), device), Server(program)
    for _ in range(2):
        with pytest.raises(LeftToServer):
            limited.bind(one, chain(program), server)
    assert server.requested == [[program.digest]]
    chains.bind(handle({"min_p": 0.1}), chain(MIN_P), Server(MIN_P))  # within the default limit


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices whose prices were looked up. They are as assumed."""
    devices: list[str] = []
    with prices._lock:  # the thread of an earlier session may still measure
        monkeypatch.setattr(prices, "_found", {})
    monkeypatch.setattr(prices, "_load_or_measure", lambda device: devices.append(device) or prices.ASSUMED)
    return devices


def test_cheap_programs_do_not_wait_for_prices(found: list[str]) -> None:
    """Only a program that is expensive at assumed prices does."""
    chains = ChainPrograms(151_936, ProgramTrust("all"), "cpu")
    chains.bind(handle({"min_p": 0.1}), chain(MIN_P), Server(MIN_P))
    assert found == []
    top_k = build.top_k(50).program
    with pytest.raises(LeftToServer):
        chains.bind(handle({}), chain(top_k), Server(top_k))
    assert found == ["cpu"]


@pytest.mark.parametrize(
    ("mode", "device", "expected"), [("all", "cpu", ["cpu"]), ("off", "cpu", []), ("all", NUMPY, [])]
)
def test_prices_are_found_in_the_background(mode: Any, device: str, expected: list[str], found: list[str]) -> None:
    thread = ChainPrograms(100, ProgramTrust(mode), device).prepare()
    assert (thread is not None) == bool(expected)
    if thread is not None:
        thread.join()
    assert found == expected


def test_nothing_is_prepared_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert ChainPrograms(100, ProgramTrust("all"), "cpu").prepare() is None


@pytest.mark.usefixtures("found")
def test_a_device_that_cannot_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(prices, "_load_or_measure", fail)
    thread = ChainPrograms(100, ProgramTrust("all"), "cpu").prepare()
    assert thread is not None
    thread.join()  # an error in a thread would be a warning, which fails


@pytest.mark.parametrize("value", ["x", "0", "-1", "nan"])
def test_a_limit_that_is_no_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_PROGRAM_MILLISECONDS", value)
    with pytest.raises(InvalidArgument, match="LOGITPORT_PROGRAM_MILLISECONDS"):
        ProgramTrust("all")


def test_the_number_of_kept_programs_is_limited() -> None:
    chains = ChainPrograms(10_000, ProgramTrust("all"), "cpu")
    programs = [build.top_k(k).program for k in range(1, _MAX_KEPT + 2)]
    server = Server(*programs)
    for program in programs:
        chains.bind(handle({}), chain(program), server)
    chains.bind(handle({}), chain(programs[-1]), server)
    assert len(server.requested) == _MAX_KEPT + 1
    chains.bind(handle({}), chain(programs[0]), server)
    assert len(server.requested) == _MAX_KEPT + 2


def test_a_session_prepares_programs(server: RunningServer, found: list[str]) -> None:
    with Client(server.target) as client, client.session(vocab_size=10, dtype=torch.float32):
        for thread in threading.enumerate():
            if thread.name == "logitport-programs":
                thread.join()
    assert found == ["cpu"]


def test_the_programs_of_a_step_may_take_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests of an engine wait for a step."""
    monkeypatch.setattr(chain_programs, "check_cost", lambda *_, **__: 150.0)
    chains, server = ChainPrograms(100, ProgramTrust("all"), "cpu", rows=4), Server(MIN_P)
    held = [handle({"min_p": 0.1}) for _ in range(4)]
    for one in held[:3]:
        chains.bind(one, chain(MIN_P), server, held)
    with pytest.raises(LeftToServer):
        chains.bind(held[3], chain(MIN_P), server, held)
    assert held[3].programs == ()
    chains.bind(held[0], chain(MIN_P), server, held)  # sent again
    chains.bind(held[3], chain(MIN_P), server, held[2:])  # after others were removed
