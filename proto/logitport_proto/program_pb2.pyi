from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_LOGITS: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_BOOL: _ClassVar[ElementType]
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_LOGITS: ElementType
ELEMENT_TYPE_FLOAT32: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_BOOL: ElementType

class Size(_message.Message):
    __slots__ = ("vocab", "window", "constant")
    VOCAB_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    vocab: int
    window: int
    constant: int
    def __init__(self, vocab: _Optional[int] = ..., window: _Optional[int] = ..., constant: _Optional[int] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("operators", "name", "window", "parameters", "values")
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    operators: int
    name: str
    window: int
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, operators: _Optional[int] = ..., name: _Optional[str] = ..., window: _Optional[int] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("name", "type", "required", "default", "minimum", "maximum", "length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: ElementType
    required: bool
    default: float
    minimum: float
    maximum: float
    length: int
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[ElementType, str]] = ..., required: bool = ..., default: _Optional[float] = ..., minimum: _Optional[float] = ..., maximum: _Optional[float] = ..., length: _Optional[int] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("operator", "inputs", "type", "shape", "has_shape", "axis", "begin", "end", "number", "integer", "flag", "parameter", "data")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    HAS_SHAPE_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    operator: str
    inputs: _containers.RepeatedScalarFieldContainer[int]
    type: ElementType
    shape: _containers.RepeatedCompositeFieldContainer[Size]
    has_shape: bool
    axis: int
    begin: Size
    end: Size
    number: float
    integer: int
    flag: bool
    parameter: str
    data: bytes
    def __init__(self, operator: _Optional[str] = ..., inputs: _Optional[_Iterable[int]] = ..., type: _Optional[_Union[ElementType, str]] = ..., shape: _Optional[_Iterable[_Union[Size, _Mapping]]] = ..., has_shape: bool = ..., axis: _Optional[int] = ..., begin: _Optional[_Union[Size, _Mapping]] = ..., end: _Optional[_Union[Size, _Mapping]] = ..., number: _Optional[float] = ..., integer: _Optional[int] = ..., flag: bool = ..., parameter: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
