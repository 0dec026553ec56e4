from logitport_proto import common_pb2 as _common_pb2
from logitport_proto import processing_pb2 as _processing_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Recording(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RecordedEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[RecordedEvent, _Mapping]]] = ...) -> None: ...

class RecordedEvent(_message.Message):
    __slots__ = ("session_id", "session_began", "request_began", "request_stepped", "request_ended", "steps_dropped", "recording_stopped")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_BEGAN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BEGAN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_STEPPED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ENDED_FIELD_NUMBER: _ClassVar[int]
    STEPS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    RECORDING_STOPPED_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    session_began: SessionBegan
    request_began: RequestBegan
    request_stepped: RequestStepped
    request_ended: RequestEnded
    steps_dropped: StepsDropped
    recording_stopped: RecordingStopped
    def __init__(self, session_id: _Optional[int] = ..., session_began: _Optional[_Union[SessionBegan, _Mapping]] = ..., request_began: _Optional[_Union[RequestBegan, _Mapping]] = ..., request_stepped: _Optional[_Union[RequestStepped, _Mapping]] = ..., request_ended: _Optional[_Union[RequestEnded, _Mapping]] = ..., steps_dropped: _Optional[_Union[StepsDropped, _Mapping]] = ..., recording_stopped: _Optional[_Union[RecordingStopped, _Mapping]] = ...) -> None: ...

class SessionBegan(_message.Message):
    __slots__ = ("opening", "time", "sdk_version")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SDK_VERSION_FIELD_NUMBER: _ClassVar[int]
    opening: _processing_pb2.OpenSession
    time: float
    sdk_version: str
    def __init__(self, opening: _Optional[_Union[_processing_pb2.OpenSession, _Mapping]] = ..., time: _Optional[float] = ..., sdk_version: _Optional[str] = ...) -> None: ...

class RequestBegan(_message.Message):
    __slots__ = ("key", "request", "processors")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    key: int
    request: _common_pb2.Request
    processors: _containers.RepeatedCompositeFieldContainer[RecordedProcessor]
    def __init__(self, key: _Optional[int] = ..., request: _Optional[_Union[_common_pb2.Request, _Mapping]] = ..., processors: _Optional[_Iterable[_Union[RecordedProcessor, _Mapping]]] = ...) -> None: ...

class RecordedProcessor(_message.Message):
    __slots__ = ("builtin", "name", "digest", "class_name", "params", "payload")
    BUILTIN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    builtin: str
    name: str
    digest: str
    class_name: str
    params: bytes
    payload: str
    def __init__(self, builtin: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., class_name: _Optional[str] = ..., params: _Optional[bytes] = ..., payload: _Optional[str] = ...) -> None: ...

class RequestStepped(_message.Message):
    __slots__ = ("key", "index", "base_length", "new_token_ids", "draft_token_ids", "rows", "greedy", "unfinished", "error", "events", "draft_parents")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PARENTS_FIELD_NUMBER: _ClassVar[int]
    key: int
    index: int
    base_length: int
    new_token_ids: bytes
    draft_token_ids: bytes
    rows: _containers.RepeatedCompositeFieldContainer[RecordedRow]
    greedy: bool
    unfinished: bool
    error: str
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    draft_parents: bytes
    def __init__(self, key: _Optional[int] = ..., index: _Optional[int] = ..., base_length: _Optional[int] = ..., new_token_ids: _Optional[bytes] = ..., draft_token_ids: _Optional[bytes] = ..., rows: _Optional[_Iterable[_Union[RecordedRow, _Mapping]]] = ..., greedy: bool = ..., unfinished: bool = ..., error: _Optional[str] = ..., events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ..., draft_parents: _Optional[bytes] = ...) -> None: ...

class RecordedRow(_message.Message):
    __slots__ = ("draft_offset", "edits", "before", "after")
    DRAFT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    draft_offset: int
    edits: _common_pb2.Edits
    before: TopLogits
    after: TopLogits
    def __init__(self, draft_offset: _Optional[int] = ..., edits: _Optional[_Union[_common_pb2.Edits, _Mapping]] = ..., before: _Optional[_Union[TopLogits, _Mapping]] = ..., after: _Optional[_Union[TopLogits, _Mapping]] = ...) -> None: ...

class TopLogits(_message.Message):
    __slots__ = ("ids", "logits", "log_sum")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    LOG_SUM_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    logits: bytes
    log_sum: float
    def __init__(self, ids: _Optional[bytes] = ..., logits: _Optional[bytes] = ..., log_sum: _Optional[float] = ...) -> None: ...

class RequestEnded(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: int
    def __init__(self, key: _Optional[int] = ...) -> None: ...

class StepsDropped(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class RecordingStopped(_message.Message):
    __slots__ = ("reason", "message", "dropped_steps")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    dropped_steps: int
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., dropped_steps: _Optional[int] = ...) -> None: ...
