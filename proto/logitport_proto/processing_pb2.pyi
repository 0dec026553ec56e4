from logitport_proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("sessions", "requests", "accepts_sessions")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    requests: int
    accepts_sessions: bool
    def __init__(self, sessions: _Optional[int] = ..., requests: _Optional[int] = ..., accepts_sessions: bool = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("logits", "requests", "num_tokens_in_batch")
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_IN_BATCH_FIELD_NUMBER: _ClassVar[int]
    logits: _common_pb2.Tensor
    requests: _containers.RepeatedCompositeFieldContainer[_common_pb2.Request]
    num_tokens_in_batch: int
    def __init__(self, logits: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., requests: _Optional[_Iterable[_Union[_common_pb2.Request, _Mapping]]] = ..., num_tokens_in_batch: _Optional[int] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("logits", "failures", "applied", "all_denied_rows", "events")
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ALL_DENIED_ROWS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    logits: _common_pb2.Tensor
    failures: _containers.RepeatedCompositeFieldContainer[_common_pb2.Failure]
    applied: _containers.RepeatedCompositeFieldContainer[_common_pb2.RowsApplied]
    all_denied_rows: bytes
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    def __init__(self, logits: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[_common_pb2.Failure, _Mapping]]] = ..., applied: _Optional[_Iterable[_Union[_common_pb2.RowsApplied, _Mapping]]] = ..., all_denied_rows: _Optional[bytes] = ..., events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("seq", "open", "add", "remove", "step", "logits", "open_region", "share_device_memory", "close_region", "get_programs")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    OPEN_REGION_FIELD_NUMBER: _ClassVar[int]
    SHARE_DEVICE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_REGION_FIELD_NUMBER: _ClassVar[int]
    GET_PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    open: OpenSession
    add: AddRequests
    remove: RemoveRequests
    step: Step
    logits: StepLogits
    open_region: OpenRegion
    share_device_memory: ShareDeviceMemory
    close_region: CloseRegion
    get_programs: GetPrograms
    def __init__(self, seq: _Optional[int] = ..., open: _Optional[_Union[OpenSession, _Mapping]] = ..., add: _Optional[_Union[AddRequests, _Mapping]] = ..., remove: _Optional[_Union[RemoveRequests, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., logits: _Optional[_Union[StepLogits, _Mapping]] = ..., open_region: _Optional[_Union[OpenRegion, _Mapping]] = ..., share_device_memory: _Optional[_Union[ShareDeviceMemory, _Mapping]] = ..., close_region: _Optional[_Union[CloseRegion, _Mapping]] = ..., get_programs: _Optional[_Union[GetPrograms, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("seq", "opened", "added", "removed", "edits", "logits", "error", "region_opened", "region_closed", "programs")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REGION_OPENED_FIELD_NUMBER: _ClassVar[int]
    REGION_CLOSED_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    opened: SessionOpened
    added: RequestsAdded
    removed: RequestsRemoved
    edits: StepEdits
    logits: StepLogitsEdited
    error: _common_pb2.Error
    region_opened: RegionOpened
    region_closed: RegionClosed
    programs: Programs
    def __init__(self, seq: _Optional[int] = ..., opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., added: _Optional[_Union[RequestsAdded, _Mapping]] = ..., removed: _Optional[_Union[RequestsRemoved, _Mapping]] = ..., edits: _Optional[_Union[StepEdits, _Mapping]] = ..., logits: _Optional[_Union[StepLogitsEdited, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., region_opened: _Optional[_Union[RegionOpened, _Mapping]] = ..., region_closed: _Optional[_Union[RegionClosed, _Mapping]] = ..., programs: _Optional[_Union[Programs, _Mapping]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("vocab_size", "datatype", "device", "model_name", "tokenizer_id", "eos_token_ids", "max_requests", "max_draft_tokens", "engine", "runs_programs", "can_move", "expected_requests")
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    RUNS_PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    CAN_MOVE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    datatype: str
    device: str
    model_name: str
    tokenizer_id: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_requests: int
    max_draft_tokens: int
    engine: str
    runs_programs: bool
    can_move: bool
    expected_requests: int
    def __init__(self, vocab_size: _Optional[int] = ..., datatype: _Optional[str] = ..., device: _Optional[str] = ..., model_name: _Optional[str] = ..., tokenizer_id: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_requests: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., engine: _Optional[str] = ..., runs_programs: bool = ..., can_move: bool = ..., expected_requests: _Optional[int] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session_id", "max_requests", "server_version", "local_transport", "step_deadline_seconds", "add_deadline_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    STEP_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADD_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    max_requests: int
    server_version: str
    local_transport: LocalTransport
    step_deadline_seconds: float
    add_deadline_seconds: float
    def __init__(self, session_id: _Optional[str] = ..., max_requests: _Optional[int] = ..., server_version: _Optional[str] = ..., local_transport: _Optional[_Union[LocalTransport, _Mapping]] = ..., step_deadline_seconds: _Optional[float] = ..., add_deadline_seconds: _Optional[float] = ...) -> None: ...

class LocalTransport(_message.Message):
    __slots__ = ("socket_path", "access_token", "max_message_bytes", "device_uuid")
    SOCKET_PATH_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    socket_path: str
    access_token: bytes
    max_message_bytes: int
    device_uuid: bytes
    def __init__(self, socket_path: _Optional[str] = ..., access_token: _Optional[bytes] = ..., max_message_bytes: _Optional[int] = ..., device_uuid: _Optional[bytes] = ...) -> None: ...

class OpenRegion(_message.Message):
    __slots__ = ("size_bytes", "replaces")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    replaces: int
    def __init__(self, size_bytes: _Optional[int] = ..., replaces: _Optional[int] = ...) -> None: ...

class ShareDeviceMemory(_message.Message):
    __slots__ = ("memory_handle", "device_uuid", "byte_offset", "size_bytes", "ready_event", "edited_event")
    MEMORY_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_EVENT_FIELD_NUMBER: _ClassVar[int]
    EDITED_EVENT_FIELD_NUMBER: _ClassVar[int]
    memory_handle: bytes
    device_uuid: bytes
    byte_offset: int
    size_bytes: int
    ready_event: bytes
    edited_event: bytes
    def __init__(self, memory_handle: _Optional[bytes] = ..., device_uuid: _Optional[bytes] = ..., byte_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., ready_event: _Optional[bytes] = ..., edited_event: _Optional[bytes] = ...) -> None: ...

class CloseRegion(_message.Message):
    __slots__ = ("region_id",)
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    def __init__(self, region_id: _Optional[int] = ...) -> None: ...

class RegionClosed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegionOpened(_message.Message):
    __slots__ = ("region_id",)
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    def __init__(self, region_id: _Optional[int] = ...) -> None: ...

class AddRequests(_message.Message):
    __slots__ = ("requests", "in_background")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    IN_BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[SlottedRequest]
    in_background: bool
    def __init__(self, requests: _Optional[_Iterable[_Union[SlottedRequest, _Mapping]]] = ..., in_background: bool = ...) -> None: ...

class SlottedRequest(_message.Message):
    __slots__ = ("slot", "generation", "request", "programs_on_server", "traceparent", "tracestate")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_ON_SERVER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    generation: int
    request: _common_pb2.Request
    programs_on_server: bool
    traceparent: str
    tracestate: str
    def __init__(self, slot: _Optional[int] = ..., generation: _Optional[int] = ..., request: _Optional[_Union[_common_pb2.Request, _Mapping]] = ..., programs_on_server: bool = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class RequestsAdded(_message.Message):
    __slots__ = ("failures", "reads_logits", "chains", "regions_retired", "pending", "ended")
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    READS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_RETIRED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    failures: _containers.RepeatedCompositeFieldContainer[_common_pb2.Failure]
    reads_logits: bytes
    chains: _containers.RepeatedCompositeFieldContainer[AdmittedChain]
    regions_retired: bool
    pending: bytes
    ended: _containers.RepeatedCompositeFieldContainer[EndedAdmission]
    def __init__(self, failures: _Optional[_Iterable[_Union[_common_pb2.Failure, _Mapping]]] = ..., reads_logits: _Optional[bytes] = ..., chains: _Optional[_Iterable[_Union[AdmittedChain, _Mapping]]] = ..., regions_retired: bool = ..., pending: _Optional[bytes] = ..., ended: _Optional[_Iterable[_Union[EndedAdmission, _Mapping]]] = ...) -> None: ...

class EndedAdmission(_message.Message):
    __slots__ = ("slot", "generation", "error", "reads_logits", "chain")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    READS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    slot: int
    generation: int
    error: _common_pb2.Error
    reads_logits: bool
    chain: AdmittedChain
    def __init__(self, slot: _Optional[int] = ..., generation: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., reads_logits: bool = ..., chain: _Optional[_Union[AdmittedChain, _Mapping]] = ...) -> None: ...

class AdmittedChain(_message.Message):
    __slots__ = ("processors", "programs", "follows_from_history", "only_denies")
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FROM_HISTORY_FIELD_NUMBER: _ClassVar[int]
    ONLY_DENIES_FIELD_NUMBER: _ClassVar[int]
    processors: _containers.RepeatedScalarFieldContainer[str]
    programs: _containers.RepeatedScalarFieldContainer[str]
    follows_from_history: bool
    only_denies: bool
    def __init__(self, processors: _Optional[_Iterable[str]] = ..., programs: _Optional[_Iterable[str]] = ..., follows_from_history: bool = ..., only_denies: bool = ...) -> None: ...

class GetPrograms(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class Programs(_message.Message):
    __slots__ = ("programs", "signatures")
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedScalarFieldContainer[bytes]
    signatures: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, programs: _Optional[_Iterable[bytes]] = ..., signatures: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RemoveRequests(_message.Message):
    __slots__ = ("slots", "generations")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    generations: bytes
    def __init__(self, slots: _Optional[bytes] = ..., generations: _Optional[bytes] = ...) -> None: ...

class RequestsRemoved(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Step(_message.Message):
    __slots__ = ("slots", "generations", "base_lengths", "history_crcs", "new_token_counts", "new_token_ids", "row_requests", "row_draft_offsets", "draft_counts", "draft_token_ids", "draft_parents")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    BASE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_CRCS_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ROW_DRAFT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PARENTS_FIELD_NUMBER: _ClassVar[int]
    slots: bytes
    generations: bytes
    base_lengths: bytes
    history_crcs: bytes
    new_token_counts: bytes
    new_token_ids: bytes
    row_requests: bytes
    row_draft_offsets: bytes
    draft_counts: bytes
    draft_token_ids: bytes
    draft_parents: bytes
    def __init__(self, slots: _Optional[bytes] = ..., generations: _Optional[bytes] = ..., base_lengths: _Optional[bytes] = ..., history_crcs: _Optional[bytes] = ..., new_token_counts: _Optional[bytes] = ..., new_token_ids: _Optional[bytes] = ..., row_requests: _Optional[bytes] = ..., row_draft_offsets: _Optional[bytes] = ..., draft_counts: _Optional[bytes] = ..., draft_token_ids: _Optional[bytes] = ..., draft_parents: _Optional[bytes] = ...) -> None: ...

class StepEdits(_message.Message):
    __slots__ = ("edits", "logits_rows", "failures", "applied", "all_denied_rows", "ended_admissions", "later_edits", "should_move", "events")
    EDITS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ALL_DENIED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ENDED_ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    LATER_EDITS_FIELD_NUMBER: _ClassVar[int]
    SHOULD_MOVE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    edits: _common_pb2.Edits
    logits_rows: bytes
    failures: _containers.RepeatedCompositeFieldContainer[_common_pb2.Failure]
    applied: _containers.RepeatedCompositeFieldContainer[_common_pb2.RowsApplied]
    all_denied_rows: bytes
    ended_admissions: int
    later_edits: _containers.RepeatedCompositeFieldContainer[_common_pb2.Edits]
    should_move: bool
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    def __init__(self, edits: _Optional[_Union[_common_pb2.Edits, _Mapping]] = ..., logits_rows: _Optional[bytes] = ..., failures: _Optional[_Iterable[_Union[_common_pb2.Failure, _Mapping]]] = ..., applied: _Optional[_Iterable[_Union[_common_pb2.RowsApplied, _Mapping]]] = ..., all_denied_rows: _Optional[bytes] = ..., ended_admissions: _Optional[int] = ..., later_edits: _Optional[_Iterable[_Union[_common_pb2.Edits, _Mapping]]] = ..., should_move: bool = ..., events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ...) -> None: ...

class StepLogits(_message.Message):
    __slots__ = ("logits",)
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    logits: _common_pb2.Tensor
    def __init__(self, logits: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ...) -> None: ...

class StepLogitsEdited(_message.Message):
    __slots__ = ("logits", "failures", "applied", "all_denied_rows", "events")
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ALL_DENIED_ROWS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    logits: _common_pb2.Tensor
    failures: _containers.RepeatedCompositeFieldContainer[_common_pb2.Failure]
    applied: _containers.RepeatedCompositeFieldContainer[_common_pb2.RowsApplied]
    all_denied_rows: bytes
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    def __init__(self, logits: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[_common_pb2.Failure, _Mapping]]] = ..., applied: _Optional[_Iterable[_Union[_common_pb2.RowsApplied, _Mapping]]] = ..., all_denied_rows: _Optional[bytes] = ..., events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ...) -> None: ...
