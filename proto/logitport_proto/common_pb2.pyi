from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_ERROR_UNSPECIFIED: _ClassVar[OnError]
    ON_ERROR_ABORT: _ClassVar[OnError]
    ON_ERROR_SKIP: _ClassVar[OnError]

class EditKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDIT_KIND_UNSPECIFIED: _ClassVar[EditKind]
    EDIT_KIND_DENY: _ClassVar[EditKind]
    EDIT_KIND_ALLOW: _ClassVar[EditKind]
    EDIT_KIND_FORCE: _ClassVar[EditKind]
    EDIT_KIND_BIAS: _ClassVar[EditKind]
    EDIT_KIND_BITMASK: _ClassVar[EditKind]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_LIMIT_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_AUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_PERMITTED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_NAME_TAKEN: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PAYLOAD: _ClassVar[ErrorCode]
    ERROR_CODE_PAYLOAD_NOT_ALLOWED: _ClassVar[ErrorCode]
    ERROR_CODE_PYTHON_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_PROCESSOR_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_PROCESSOR_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_PROCESSOR_QUARANTINED: _ClassVar[ErrorCode]
    ERROR_CODE_NEED_SYNC: _ClassVar[ErrorCode]
    ERROR_CODE_STATE_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_SESSION_CLOSED: _ClassVar[ErrorCode]
ON_ERROR_UNSPECIFIED: OnError
ON_ERROR_ABORT: OnError
ON_ERROR_SKIP: OnError
EDIT_KIND_UNSPECIFIED: EditKind
EDIT_KIND_DENY: EditKind
EDIT_KIND_ALLOW: EditKind
EDIT_KIND_FORCE: EditKind
EDIT_KIND_BIAS: EditKind
EDIT_KIND_BITMASK: EditKind
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_LIMIT_EXCEEDED: ErrorCode
ERROR_CODE_NOT_AUTHENTICATED: ErrorCode
ERROR_CODE_NOT_PERMITTED: ErrorCode
ERROR_CODE_NOT_FOUND: ErrorCode
ERROR_CODE_NAME_TAKEN: ErrorCode
ERROR_CODE_INVALID_PAYLOAD: ErrorCode
ERROR_CODE_PAYLOAD_NOT_ALLOWED: ErrorCode
ERROR_CODE_PYTHON_MISMATCH: ErrorCode
ERROR_CODE_PROCESSOR_FAILED: ErrorCode
ERROR_CODE_PROCESSOR_TIMED_OUT: ErrorCode
ERROR_CODE_PROCESSOR_QUARANTINED: ErrorCode
ERROR_CODE_NEED_SYNC: ErrorCode
ERROR_CODE_STATE_LOST: ErrorCode
ERROR_CODE_SESSION_CLOSED: ErrorCode

class Tensor(_message.Message):
    __slots__ = ("datatype", "shape", "raw", "region")
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    raw: bytes
    region: Region
    def __init__(self, datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., raw: _Optional[bytes] = ..., region: _Optional[_Union[Region, _Mapping]] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("region_id", "byte_offset")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    byte_offset: int
    def __init__(self, region_id: _Optional[int] = ..., byte_offset: _Optional[int] = ...) -> None: ...

class Processor(_message.Message):
    __slots__ = ("builtin", "name", "digest", "payload")
    BUILTIN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    builtin: str
    name: str
    digest: str
    payload: str
    def __init__(self, builtin: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., payload: _Optional[str] = ...) -> None: ...

class ProcessorCall(_message.Message):
    __slots__ = ("processor", "params")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    processor: Processor
    params: bytes
    def __init__(self, processor: _Optional[_Union[Processor, _Mapping]] = ..., params: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "output_token_ids", "prompt_ids", "output_ids", "processors", "sampling_params", "tenant", "on_error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_ids: bytes
    output_ids: bytes
    processors: _containers.RepeatedCompositeFieldContainer[ProcessorCall]
    sampling_params: bytes
    tenant: str
    on_error: OnError
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., prompt_ids: _Optional[bytes] = ..., output_ids: _Optional[bytes] = ..., processors: _Optional[_Iterable[_Union[ProcessorCall, _Mapping]]] = ..., sampling_params: _Optional[bytes] = ..., tenant: _Optional[str] = ..., on_error: _Optional[_Union[OnError, str]] = ...) -> None: ...

class Edits(_message.Message):
    __slots__ = ("rows", "kinds", "offsets", "ids", "values")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    kinds: bytes
    offsets: bytes
    ids: bytes
    values: bytes
    def __init__(self, rows: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "processor", "remote_traceback", "output")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    processor: str
    remote_traceback: str
    output: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., processor: _Optional[str] = ..., remote_traceback: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...

class ProcessorOutput(_message.Message):
    __slots__ = ("processor", "display_name", "text", "time")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    processor: str
    display_name: str
    text: str
    time: float
    def __init__(self, processor: _Optional[str] = ..., display_name: _Optional[str] = ..., text: _Optional[str] = ..., time: _Optional[float] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("slot", "error", "skipped")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    slot: int
    error: Error
    skipped: bool
    def __init__(self, slot: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., skipped: bool = ...) -> None: ...

class RowsApplied(_message.Message):
    __slots__ = ("processor", "display_name", "rows")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    processor: str
    display_name: str
    rows: int
    def __init__(self, processor: _Optional[str] = ..., display_name: _Optional[str] = ..., rows: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("slot", "processor", "name", "position", "values", "left_out", "draft_offset")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    slot: int
    processor: str
    name: str
    position: int
    values: bytes
    left_out: int
    draft_offset: int
    def __init__(self, slot: _Optional[int] = ..., processor: _Optional[str] = ..., name: _Optional[str] = ..., position: _Optional[int] = ..., values: _Optional[bytes] = ..., left_out: _Optional[int] = ..., draft_offset: _Optional[int] = ...) -> None: ...
