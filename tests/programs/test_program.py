"""A program has one form in bytes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from logitport.errors import InvalidArgument, LimitExceeded, LogitportError
from logitport_programs.program import Parameter, Program, Value
from logitport_programs.types import Element, Size
from logitport_proto import program_pb2
from tests.programs.strategies import broken_programs, programs
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Program(
    "Scaled",
    (
        Value("logits"),
        Value("parameter", parameter="scale"),
        Value("cast", (1,), element=Element.LOGITS),
        Value("unsqueeze", (2,), axis=1),
        Value("multiply", (0, 3)),
    ),
    (Parameter("scale", Element.FLOAT32, 1.0, 0.0, 2.0),),
)


def changed(change: Callable[[Any], object]) -> bytes:
    message = program_pb2.Program.FromString(PROGRAM.to_bytes())
    change(message)
    return bytes(message.SerializeToString(deterministic=True))


def test_the_digest_is_that_of_the_bytes() -> None:
    data = PROGRAM.to_bytes()
    assert PROGRAM.digest == hashlib.sha256(data).hexdigest()
    assert Program.from_bytes(data) == PROGRAM
    assert Program.from_bytes(data).digest == PROGRAM.digest


def test_the_digest_is_the_same_in_each_release() -> None:
    assert PROGRAM.digest == "11a48441432a2b869b309e1bc2b6751a5cb7b8462b58a8d747fcc69a59f4bc72"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs() | broken_programs())
def test_bytes_are_read_back(program: Program) -> None:
    data = program.to_bytes()
    again = Program.from_bytes(data)
    assert again.to_bytes() == data
    assert again.digest == program.digest
    assert repr(again.values) == repr(program.values)  # NaN is not equal to itself
    assert again.parameters == program.parameters


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_the_operators_is_refused_before_the_values_are_read(version: int) -> None:
    def change(message: Any) -> None:
        message.operators = version
        message.values[2].type = 77

    with pytest.raises(InvalidArgument, match=f"uses version {version} of the operators; this logitport has version 1"):
        Program.from_bytes(changed(change))


REFUSED = [
    (lambda message: setattr(message.parameters[0], "required", True), "not the canonical form"),  # with a default
    (lambda message: setattr(message.parameters[0], "default", -0.0), "not the canonical form"),
    (lambda message: setattr(message.values[2], "type", 77), "unknown element type"),
    (lambda message: setattr(message.parameters[0], "type", 0), "unknown element type"),
]
# They are counted before an object is made of each: these objects have unknown element types, too.
TOO_MANY = [
    (lambda message: message.values[1].inputs.extend([0] * 65), "65 inputs of one value; the limit is 64"),
    (lambda message: message.values.extend([program_pb2.Value()] * 508), "513 values; the limit is 512"),
    (lambda message: message.parameters.extend([program_pb2.Parameter()] * 32), "33 parameters; the limit is 32"),
    (lambda message: message.values[1].shape.extend([program_pb2.Size()] * 4), "4 sizes in a shape; the limit is 3"),
]


@pytest.mark.parametrize(
    ("change", "reason", "error"),
    [*((*case, InvalidArgument) for case in REFUSED), *((*case, LimitExceeded) for case in TOO_MANY)],
)
def test_changed_bytes_are_refused(change: Callable[[Any], object], reason: str, error: type[LogitportError]) -> None:
    with pytest.raises(error, match=reason):
        Program.from_bytes(changed(change))


def test_sizes_are_shown_as_sums() -> None:
    shown = [str(Size(*size)) for size in [(0, 0, 0), (1, 0, 0), (2, -1, 3), (-1, 0, -1), (0, 1, 0)]]
    assert shown == ["0", "vocab", "2*vocab-window+3", "-vocab-1", "window"]
