from logitport_proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessorInfo(_message.Message):
    __slots__ = ("digest", "names", "builtin", "python", "dill", "size_bytes", "registered_at", "owner", "shared", "quarantined", "class_name", "dialect")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    BUILTIN_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    DILL_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    names: _containers.RepeatedScalarFieldContainer[str]
    builtin: bool
    python: str
    dill: str
    size_bytes: int
    registered_at: float
    owner: str
    shared: bool
    quarantined: str
    class_name: str
    dialect: str
    def __init__(self, digest: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., builtin: bool = ..., python: _Optional[str] = ..., dill: _Optional[str] = ..., size_bytes: _Optional[int] = ..., registered_at: _Optional[float] = ..., owner: _Optional[str] = ..., shared: bool = ..., quarantined: _Optional[str] = ..., class_name: _Optional[str] = ..., dialect: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("payload", "name", "replace", "shared")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    payload: str
    name: str
    replace: bool
    shared: bool
    def __init__(self, payload: _Optional[str] = ..., name: _Optional[str] = ..., replace: bool = ..., shared: bool = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("processor", "registry_id")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_ID_FIELD_NUMBER: _ClassVar[int]
    processor: ProcessorInfo
    registry_id: str
    def __init__(self, processor: _Optional[_Union[ProcessorInfo, _Mapping]] = ..., registry_id: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("processor",)
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    processor: str
    def __init__(self, processor: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("processor",)
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    processor: ProcessorInfo
    def __init__(self, processor: _Optional[_Union[ProcessorInfo, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("processors", "registry_id")
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_ID_FIELD_NUMBER: _ClassVar[int]
    processors: _containers.RepeatedCompositeFieldContainer[ProcessorInfo]
    registry_id: str
    def __init__(self, processors: _Optional[_Iterable[_Union[ProcessorInfo, _Mapping]]] = ..., registry_id: _Optional[str] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("processor",)
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    processor: str
    def __init__(self, processor: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class GetOutputRequest(_message.Message):
    __slots__ = ("processor",)
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    processor: str
    def __init__(self, processor: _Optional[str] = ...) -> None: ...

class GetOutputResponse(_message.Message):
    __slots__ = ("outputs", "dropped_characters")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_common_pb2.ProcessorOutput]
    dropped_characters: int
    def __init__(self, outputs: _Optional[_Iterable[_Union[_common_pb2.ProcessorOutput, _Mapping]]] = ..., dropped_characters: _Optional[int] = ...) -> None: ...
