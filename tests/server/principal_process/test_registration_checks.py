"""What a process states about a message of Register, and what the front door makes of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from logitport import InvalidArgument, LimitExceeded, LogitportError, PayloadError, payload
from logitport.system.fair_threads import FairThreads
from logitport_proto import registry_pb2
from logitport_server.access import Unparsed, current_call
from logitport_server.access.call_guard import AuthorizedCall
from logitport_server.executors.output_log import OutputLog
from logitport_server.front_door.registry_service import RegistryService
from logitport_server.principal_process.process_messages import Checked
from logitport_server.principal_process.registration_checks import Checks
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry
from logitport_server.registry.trusted_keys import TrustedKeys
from logitport_session.resources.parsing import position_of
from logitport_session.trust.principals import REGISTER, Principal
from tests.programs.runtime import build
from tests.toy_processors import AddOne, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ANN = Principal("ann", frozenset({REGISTER}))
KEY = Ed25519PrivateKey.generate()
CODE, OTHER = payload.sign(Unchanged.to_str(), KEY, name="team/x"), AddOne.to_str()
PROGRAM = payload.seal_program(build.min_p().program.to_bytes(), "MinP")
POLICY = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20)
CHECKS = Checks(POLICY, payload.check_python)


def request(serialized: str, name: str = "team/x", **fields: Any) -> bytes:
    return registry_pb2.RegisterRequest(payload=serialized, name=name, **fields).SerializeToString()


def checked(data: bytes) -> Checked:
    return msgspec.msgpack.decode(CHECKS.check_message(data), type=Checked)


@pytest.mark.parametrize("serialized", [CODE, OTHER, PROGRAM, json.dumps({**json.loads(OTHER), "é": "ü"})])
def test_a_payload_as_plain_data(serialized: str) -> None:
    data = request(serialized, shared=True) + b"\x7a\x03xyz"
    found, parsed = checked(data), payload.parse(serialized)
    assert (found.name, found.replace, found.shared) == ("team/x", False, True)
    assert data[found.start : found.end].decode() == serialized
    made = payload.labelled(found.data, found.labels, is_program=found.is_program)
    assert vars(made) == vars(parsed)


def test_the_last_of_several_payloads_counts() -> None:
    data = request(OTHER) + request(CODE)
    found = checked(data)
    assert data[found.start : found.end].decode() == CODE
    assert found.data == payload.parse(CODE).data


@pytest.mark.parametrize(
    "other",
    [
        *(b"", registry_pb2.RegisterRequest(payload="", replace=True).SerializeToString(), b"\x7a\x02\x0a\x01"),
        *(b"\xf8\x07\xff\xff\x03", b"\x79" + b"\x0a" * 8, b"\x7d" + b"\x0a" * 4),
    ],
)
def test_the_position_of_a_string_among_other_fields(other: bytes) -> None:
    for data in (other + request(CODE, name="é/\n"), request(CODE) + other):
        assert registry_pb2.RegisterRequest.FromString(data).payload == CODE
        start, end = position_of(1, data)
        assert data[start:end].decode() == CODE
    assert position_of(1, other) == (0, 0)


@pytest.mark.parametrize("data", [b"\x0b", b"\x0a", b"\x0a\xff\xff", b"\x08" + b"\x80" * 11])
def test_the_position_in_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="are not a valid message"):
        position_of(1, data)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"\x0a\x7f", InvalidArgument, "not a valid RegisterRequest"),
        (request("not JSON"), PayloadError, "not JSON"),
        (request('{"callable": "00"}'), PayloadError, "pickle"),
        (request(json.dumps({**json.loads(OTHER), "python": "3.9"})), PayloadError, r"3\.9"),
        (request(json.dumps({"program": "00ff"})), InvalidArgument, "are not a program"),
        (request(OTHER, name="x"), InvalidArgument, "namespace/name"),
        (request(" " * (1 << 20) + OTHER), LimitExceeded, "--max-payload-bytes"),
    ],
)
def test_refused_messages(data: bytes, error: type[LogitportError], message: str) -> None:
    with pytest.raises(error, match=message):
        CHECKS.check_message(data)


@pytest.fixture
def keys(tmp_path: Path) -> TrustedKeys:
    (tmp_path / "a.pub").write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return TrustedKeys(tmp_path)


@pytest.fixture
def register(keys: TrustedKeys) -> Iterator[Callable[..., registry_pb2.ProcessorInfo]]:
    """Registers with a front door that trusts one key, and accepts no programs, what a process has stated."""
    policy = PayloadPolicy(allow_shipped=True, allow_programs=False, max_bytes=1 << 16, trusted_keys=keys)
    threads = FairThreads(1, "test")

    def call(data: bytes, answer: bytes) -> registry_pb2.ProcessorInfo:
        async def check(message: bytes, context: object) -> bytes:
            assert message == data
            return answer

        async def run() -> registry_pb2.RegisterResponse:
            current_call.set(AuthorizedCall(ANN, lambda: None))
            registry = Registry(policy, max_registered=8, max_owned=8)
            service = RegistryService(registry, check, threads, OutputLog())
            return await service.Register(cast("Any", Unparsed(data)), cast("Any", None))

        return asyncio.run(run()).processor

    yield call
    threads.close()


def test_an_honest_process(register: Callable[..., registry_pb2.ProcessorInfo]) -> None:
    info = register(request(CODE), CHECKS.check_message(request(CODE)))
    assert (info.digest, list(info.names), info.class_name) == (payload.parse(CODE).digest, ["team/x"], "Unchanged")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": payload.parse(OTHER).data}, "signature does not fit"),
        ({"labels": {}}, "is not signed"),
        ({"labels": {**payload.parse(CODE).labels, "class": "\x1b[2J"}}, "must be a name"),
        ({"labels": {**payload.parse(CODE).labels, "python": "3" * 65}}, "a label has 64"),
        ({"labels": {**payload.parse(CODE).labels, "dill": 3}}, "must be a string"),
        ({"name": "team/y"}, "signed for 'team/x', not for 'team/y'"),
        ({"name": "installed"}, "namespace/name"),
        ({"is_program": True}, "--no-programs"),
    ],
)
def test_a_dishonest_process(
    register: Callable[..., registry_pb2.ProcessorInfo], change: dict[str, Any], message: str
) -> None:
    data = request(CODE)
    answer = msgspec.structs.replace(checked(data), **change)
    with pytest.raises(LogitportError, match=message):
        register(data, msgspec.msgpack.encode(answer))


@pytest.mark.parametrize("answer", [b"", b"\xff", msgspec.msgpack.encode(["team/x"])])
def test_an_answer_of_another_form(register: Callable[..., registry_pb2.ProcessorInfo], answer: bytes) -> None:
    with pytest.raises(LogitportError, match="has answered what cannot be read"):
        register(request(CODE), answer)
