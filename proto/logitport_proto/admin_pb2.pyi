from logitport_proto import registry_pb2 as _registry_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "python_version", "device", "uptime_seconds", "draining", "sessions", "movable_sessions", "max_sessions", "requests", "pending_requests", "steps", "accepts_code", "accepts_programs", "isolation", "requires_authentication", "requires_signatures", "registered_processors", "max_registered_processors", "installed_processors", "loader_hits", "loader_misses", "worker_count", "max_workers", "workers_lost", "workers", "quarantine_count", "quarantines", "time_bounds_seconds", "processor_times")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_CODE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_AUTHENTICATION_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    MAX_REGISTERED_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    LOADER_HITS_FIELD_NUMBER: _ClassVar[int]
    LOADER_MISSES_FIELD_NUMBER: _ClassVar[int]
    WORKER_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_LOST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    TIME_BOUNDS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_TIMES_FIELD_NUMBER: _ClassVar[int]
    version: str
    python_version: str
    device: str
    uptime_seconds: float
    draining: bool
    sessions: int
    movable_sessions: int
    max_sessions: int
    requests: int
    pending_requests: int
    steps: int
    accepts_code: bool
    accepts_programs: bool
    isolation: str
    requires_authentication: bool
    requires_signatures: bool
    registered_processors: int
    max_registered_processors: int
    installed_processors: int
    loader_hits: int
    loader_misses: int
    worker_count: int
    max_workers: int
    workers_lost: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    quarantine_count: int
    quarantines: _containers.RepeatedCompositeFieldContainer[QuarantineInfo]
    time_bounds_seconds: _containers.RepeatedScalarFieldContainer[float]
    processor_times: _containers.RepeatedCompositeFieldContainer[ProcessorTimes]
    def __init__(self, version: _Optional[str] = ..., python_version: _Optional[str] = ..., device: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., draining: bool = ..., sessions: _Optional[int] = ..., movable_sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., requests: _Optional[int] = ..., pending_requests: _Optional[int] = ..., steps: _Optional[int] = ..., accepts_code: bool = ..., accepts_programs: bool = ..., isolation: _Optional[str] = ..., requires_authentication: bool = ..., requires_signatures: bool = ..., registered_processors: _Optional[int] = ..., max_registered_processors: _Optional[int] = ..., installed_processors: _Optional[int] = ..., loader_hits: _Optional[int] = ..., loader_misses: _Optional[int] = ..., worker_count: _Optional[int] = ..., max_workers: _Optional[int] = ..., workers_lost: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., quarantine_count: _Optional[int] = ..., quarantines: _Optional[_Iterable[_Union[QuarantineInfo, _Mapping]]] = ..., time_bounds_seconds: _Optional[_Iterable[float]] = ..., processor_times: _Optional[_Iterable[_Union[ProcessorTimes, _Mapping]]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("process_id", "state", "memory_bytes", "processors", "owner", "principal", "tenant")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    state: str
    memory_bytes: int
    processors: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    principal: str
    tenant: str
    def __init__(self, process_id: _Optional[int] = ..., state: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., processors: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., principal: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class QuarantineInfo(_message.Message):
    __slots__ = ("digest", "names", "owner", "principal", "tenant", "reason")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    digest: str
    names: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    principal: str
    tenant: str
    reason: str
    def __init__(self, digest: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., principal: _Optional[str] = ..., tenant: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ProcessorTimes(_message.Message):
    __slots__ = ("processor", "counts", "total_seconds", "rows")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    processor: str
    counts: _containers.RepeatedScalarFieldContainer[int]
    total_seconds: float
    rows: int
    def __init__(self, processor: _Optional[str] = ..., counts: _Optional[_Iterable[int]] = ..., total_seconds: _Optional[float] = ..., rows: _Optional[int] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "principal", "engine", "model_name", "transport", "peer", "age_seconds", "requests", "pending_requests", "max_requests", "steps", "last_step_age_seconds", "vocab_size", "datatype", "device", "can_move", "should_move")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CAN_MOVE_FIELD_NUMBER: _ClassVar[int]
    SHOULD_MOVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    principal: str
    engine: str
    model_name: str
    transport: str
    peer: str
    age_seconds: float
    requests: int
    pending_requests: int
    max_requests: int
    steps: int
    last_step_age_seconds: float
    vocab_size: int
    datatype: str
    device: str
    can_move: bool
    should_move: bool
    def __init__(self, session_id: _Optional[str] = ..., principal: _Optional[str] = ..., engine: _Optional[str] = ..., model_name: _Optional[str] = ..., transport: _Optional[str] = ..., peer: _Optional[str] = ..., age_seconds: _Optional[float] = ..., requests: _Optional[int] = ..., pending_requests: _Optional[int] = ..., max_requests: _Optional[int] = ..., steps: _Optional[int] = ..., last_step_age_seconds: _Optional[float] = ..., vocab_size: _Optional[int] = ..., datatype: _Optional[str] = ..., device: _Optional[str] = ..., can_move: bool = ..., should_move: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("sessions", "movable_sessions")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    movable_sessions: int
    def __init__(self, sessions: _Optional[int] = ..., movable_sessions: _Optional[int] = ...) -> None: ...

class UnquarantineRequest(_message.Message):
    __slots__ = ("processor",)
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    processor: str
    def __init__(self, processor: _Optional[str] = ...) -> None: ...

class UnquarantineResponse(_message.Message):
    __slots__ = ("processor", "was_quarantined")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    WAS_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    processor: _registry_pb2.ProcessorInfo
    was_quarantined: bool
    def __init__(self, processor: _Optional[_Union[_registry_pb2.ProcessorInfo, _Mapping]] = ..., was_quarantined: bool = ...) -> None: ...
