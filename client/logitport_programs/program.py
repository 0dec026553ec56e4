"""A program: its parameters, and values that are each computed from earlier ones. Its canonical bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_programs.types import Element, Shape, Size
from logitport_proto import program_pb2

OPERATORS_VERSION = 1

# Before a program is parsed. A constant of a whole vocabulary in float32 has 600 kB.
MAX_BYTES = 4 << 20
# Before objects are made of the message: a value may have two bytes.
MAX_VALUES = 512
MAX_PARAMETERS = 32
MAX_RANK = 3  # no processor that was looked at needs more
# Ids in a list. Each row of a step has a padded copy of it.
MAX_LIST_LENGTH = 4096
MAX_TOKEN_ID = (1 << 31) - 1
MAX_INPUTS = 64  # of one value; only `concatenate` has more than three
# Fields that a message has under the same name, in the same form.
_PARAMETER_FIELDS = ("name", "minimum", "maximum", "length")
_VALUE_FIELDS = ("operator", "inputs", "axis", "number", "integer", "flag", "parameter", "data")


@dataclass(frozen=True)
class Parameter:
    """Parameter that a request may set: one number, which the program reads as a value [rows], or a list of token ids.

    Attributes:
        name: the key in the request's parameters.
        element: FLOAT32, INT64 or BOOL.
        default: the value for requests that do not set it; None if they must. Of a list it is 0: the empty list.
        minimum, maximum: the limits, inclusive; in a list, of each id.
        length: the largest number of token ids, which the program reads as int64[rows, length]; 0 if it is a number.
    """

    name: str
    element: Element
    default: float | None = None
    minimum: float = float("-inf")
    maximum: float = float("inf")
    length: int = 0


@dataclass(frozen=True)
class Value:
    """One operator, applied to earlier values. docs/programs-spec.md has the fields that each operator uses.

    Attributes:
        operator: its name.
        inputs: positions of its inputs.
        element: element type of the result, for operators that set it.
        shape: sizes of the result after the rows, for operators that set them.
        axis: counted from the end; 1 is the last axis.
        begin, end: sizes, see the operator.
        number: a float, see the operator.
        integer: an integer, see the operator.
        flag: see the operator.
        parameter: name of a parameter.
        data: the elements of a constant, row-major and little-endian.
    """

    operator: str
    inputs: tuple[int, ...] = ()
    element: Element | None = None
    shape: Shape | None = None
    axis: int = 0
    begin: Size | None = None
    end: Size | None = None
    number: float = 0.0
    integer: int = 0
    flag: bool = False
    parameter: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class Program:
    """A processor that reads logits, as data.

    Attributes:
        name: name of the class that it was captured from; informational.
        values: the values; the last one is the result.
        parameters: those that a request may set.
        window: number of last ids of each history that the program reads.
    """

    name: str
    values: tuple[Value, ...]
    parameters: tuple[Parameter, ...] = ()
    window: int = 0
    digest: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.to_bytes()).hexdigest())

    def to_bytes(self) -> bytes:
        """The canonical bytes. Their SHA-256 is the digest."""
        return _to_proto(self).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Parse canonical bytes. The program is not verified.

        Raises:
            InvalidArgument: the bytes are too many, no program, or not canonical.
            LimitExceeded: there are too many values, parameters, inputs of a value, or sizes in a shape.
        """
        if len(data) > MAX_BYTES:
            raise InvalidArgument(f"a program of {len(data)} bytes; the limit is {MAX_BYTES}: use smaller constants")
        try:
            message = program_pb2.Program.FromString(data)
        except DecodeError as error:
            raise InvalidArgument(f"{len(data)} bytes are not a program: {error}") from error
        if message.operators != OPERATORS_VERSION:
            raise InvalidArgument(
                f"the program uses version {message.operators} of the operators; this logitport has version "
                f"{OPERATORS_VERSION}: capture the program again, or update logitport"
            )
        _check_counts(message)
        program = _from_proto(message)
        if program.to_bytes() != data:
            raise InvalidArgument(
                "the bytes are not the canonical form of the program: send what Program.to_bytes returns"
            )
        return program


def _check_counts(message: program_pb2.Program) -> None:
    # First the values: four megabytes have two million empty ones, and each becomes an object when it is read.
    _check_count("values", len(message.values), MAX_VALUES)
    _check_count("parameters", len(message.parameters), MAX_PARAMETERS)
    for value in message.values:
        _check_count("sizes in a shape", len(value.shape), MAX_RANK)
        _check_count("inputs of one value", len(value.inputs), MAX_INPUTS)


def _check_count(what: str, number: int, limit: int) -> None:
    if number > limit:
        raise LimitExceeded(f"a program has {number} {what}; the limit is {limit}")


def _to_proto(program: Program) -> program_pb2.Program:
    return program_pb2.Program(
        operators=OPERATORS_VERSION,
        name=program.name,
        window=program.window,
        parameters=[
            program_pb2.Parameter(
                type=parameter.element.value,
                required=parameter.default is None,
                default=parameter.default or 0.0,
                **{name: getattr(parameter, name) for name in _PARAMETER_FIELDS},
            )
            for parameter in program.parameters
        ],
        values=[
            program_pb2.Value(
                type=value.element.value if value.element is not None else 0,  # type: ignore[arg-type]
                shape=[_size_to_proto(size) for size in value.shape or ()],
                has_shape=value.shape is not None,
                begin=_size_to_proto(value.begin) if value.begin is not None else None,
                end=_size_to_proto(value.end) if value.end is not None else None,
                **{name: getattr(value, name) for name in _VALUE_FIELDS},
            )
            for value in program.values
        ],
    )


def _from_proto(message: program_pb2.Program) -> Program:
    try:
        parameters = tuple(
            Parameter(
                element=Element(parameter.type),
                default=None if parameter.required else parameter.default,
                **{name: getattr(parameter, name) for name in _PARAMETER_FIELDS},
            )
            for parameter in message.parameters
        )
        values = tuple(
            Value(
                inputs=tuple(value.inputs),
                element=Element(value.type) if value.type else None,
                shape=tuple(map(_size, value.shape)) if value.has_shape else None,
                begin=_size(value.begin) if value.HasField("begin") else None,
                end=_size(value.end) if value.HasField("end") else None,
                **{name: getattr(value, name) for name in _VALUE_FIELDS if name != "inputs"},
            )
            for value in message.values
        )
    except ValueError as error:
        raise InvalidArgument(f"the program has an unknown element type: {error}") from error
    return Program(message.name, values, parameters, message.window)


def _size_to_proto(size: Size) -> program_pb2.Size:
    return program_pb2.Size(vocab=size.vocab, window=size.window, constant=size.constant)


def _size(message: program_pb2.Size) -> Size:
    return Size(message.vocab, message.window, message.constant)
