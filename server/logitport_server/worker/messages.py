"""Messages between the server, its zygotes and their workers. Both ends import this file.

Messages are JSON, and every message type is a tagged `msgspec.Struct`: decoding checks the type and bounds of each
field and rejects unknown fields. `packing` decodes the replies of untrusted workers.
"""

from __future__ import annotations

from typing import Annotated, Union

import msgspec

from logitport_sandbox import WorkerLimits  # noqa: TC001 - msgspec evaluates the annotations

# In characters. `failures` cuts the texts of an error to less; longer ones are invalid.
MAX_TEXT_LENGTH = 2000
MAX_TRACE_LENGTH = 5000
# Length of a processor's output: of a call, and before an error.
MAX_OUTPUT_LENGTH = 4096
MAX_ERROR_OUTPUT_LENGTH = 2000

_Int32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_LENGTH)]
_Trace = Annotated[str, msgspec.Meta(max_length=MAX_TRACE_LENGTH)]
_Output = Annotated[str, msgspec.Meta(max_length=MAX_OUTPUT_LENGTH)]
_ErrorOutput = Annotated[str, msgspec.Meta(max_length=MAX_ERROR_OUTPUT_LENGTH)]


class _Message(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message. Its JSON has the class name as "type"."""


# Calls: server to worker.


class WorkerCall(_Message, kw_only=True):
    """A call of one processor.

    Attributes:
        processor: number of the processor in the worker.
        released: (processor, state) numbers that the worker can drop; with state None, the whole processor.
    """

    processor: int
    released: list[tuple[int, int | None]] = []


class LoadProcessor(WorkerCall, kw_only=True):
    """Load a processor. The columns are the pickle of its class, and its source lines.

    Attributes:
        name: display name of the processor, for error messages.
        digest, python, dill: fields of the payload.
        gpu: torch device and hexadecimal UUID of the GPU that the worker may use; None without one.
    """

    name: str
    digest: str
    python: str
    dill: str
    gpu: tuple[str, str] | None = None


class Validate(WorkerCall, kw_only=True):
    """Check parameters. The columns are the parameters and the sampling parameters, as JSON."""


class Start(WorkerCall, kw_only=True):
    """Build the state of a request. The columns are as in `Validate`, and the token ids as int32.

    Attributes:
        state: number of the new state.
        prompt_length: how many of the token ids are the prompt.
    """

    state: int
    request_id: str
    prompt_length: int
    vocab_size: int
    tokenizer_id: str
    eos_token_ids: tuple[int, ...]
    max_requests: int


class WorkerMemory(msgspec.Struct, array_like=True):
    """Shared memory. Its descriptor is sent with the message.

    Attributes:
        number: number of the memory in the worker.
        size_bytes: how much of it to map.
    """

    number: int
    size_bytes: int


class OpenGpuMemory(WorkerCall, kw_only=True):
    """Open memory of the GPU."""

    memory: WorkerMemory


class StepCall(WorkerCall, kw_only=True):
    """The part of a step's call that `Edit` and `Process` share. The column is the history events as int32.

    Attributes:
        states: state number of each row, 0 for a row to leave out; None to use the previous call's.
        counts: number of history events of each row; None if each row has one.
        drafts: number of draft tokens at the end of each row's history, or empty.
    """

    states: list[int] | None = None
    counts: list[int] | None = None
    drafts: list[int] = []


class Edit(StepCall, kw_only=True):
    """Compute edits."""

    vocab_size: int


class LogitsPlacement(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Where the logits of a call are.

    Attributes:
        offset: first byte in it.
        dtype: name of the torch dtype.
        mapped: memory to map before the call.
        unmapped: numbers of memory to unmap before the call.
    """

    memory: int
    offset: int
    rows: int
    vocab_size: int
    dtype: str
    mapped: WorkerMemory | None = None
    unmapped: list[int] = []


class Process(StepCall, kw_only=True):
    """Process logits in shared memory.

    Attributes:
        drafts_before: the draft tokens before each row; empty if the processor does not take them.
    """

    logits: LogitsPlacement
    drafts_before: list[list[int]] = []


# Replies: worker to server. The server does not trust them.


class Error(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A `LogitportError`: the fields of `logitport.v1.Error`."""

    code: _Int32
    message: _Text
    trace: _Trace
    output: _ErrorOutput = ""


class _Reply(_Message, kw_only=True):
    """A reply.

    Attributes:
        output: what the processor printed and logged during the call.
    """

    output: _Output = ""


class ErrorReply(_Reply):
    """The call failed."""

    error: Error


class TooLarge(_Reply):
    """The columns of the reply are larger than their limit. The call has failed, and the worker continues.

    Attributes:
        size_bytes: the sum of all columns.
    """

    size_bytes: _Int64


class EmptyReply(_Reply):
    """Reply to `Validate` and `OpenGpuMemory`."""


class LoadReply(_Reply):
    """Reply to `LoadProcessor`.

    Attributes:
        reads_logits, argmax_invariant, takes_drafts: attributes of the dialect.
        unpickled: whether the class was unpickled now; False if it was cached.
        init_seconds: how long the creation of the instance took.
        kept: whether the worker keeps the instance when the processor is released, until the class is loaded again.
        checks_params: whether `Validate` can refuse parameters.
        checks_sampling_params: whether the result of `Validate` also depends on the sampling parameters.
        denies_without: attribute of the dialect.
        gpu_error: why the worker cannot use the GPU; "" if it can or has none.
    """

    reads_logits: bool
    argmax_invariant: bool = False
    takes_drafts: bool = False
    unpickled: bool = False
    init_seconds: _Seconds = 0.0
    kept: bool = False
    checks_params: bool = True
    checks_sampling_params: bool = True
    denies_without: list[_Text] | None = None
    gpu_error: _Text = ""


class StartReply(_Reply):
    """Reply to `Start`.

    Attributes:
        argmax_invariant: attribute of the dialect; an instance may only know it now.
    """

    argmax_invariant: bool = False


class EditReply(_Reply):
    """Reply to `Edit`. The columns are the edits, and the events if there are any; see `event_column`.

    Attributes:
        failed: the error of each row that failed.
    """

    failed: dict[_Int32, Error] = {}


class ProcessReply(_Reply):
    """Reply to `Process`. The logits are edited in place.

    Attributes:
        failed: the error of each row that failed.
        not_rebuildable: numbers of states that have ceased to be a function of the history.
    """

    failed: dict[_Int32, Error] = {}
    not_rebuildable: list[_Int64] = []


# Server and zygote.


class Fork(_Message):
    """Fork a worker. The descriptor is its end of the connection."""

    worker: int
    limits: WorkerLimits


class Ready(_Message):
    """The zygote can fork."""


class Forked(_Message):
    """A worker runs. The descriptor is its pidfd."""

    worker: int


class ForkFailed(_Message):
    """A worker could not be forked.

    Attributes:
        lacks_descriptors: whether the zygote has no free descriptor.
    """

    worker: int
    reason: str
    lacks_descriptors: bool = False


class Ended(_Message):
    """A worker has ended.

    Attributes:
        status: exit status, or the negative signal number.
    """

    worker: int
    status: int


Reply = Union[ErrorReply, TooLarge, EmptyReply, LoadReply, StartReply, EditReply, ProcessReply]
ZygoteEvent = Union[Ready, Forked, ForkFailed, Ended]

_encoder = msgspec.json.Encoder()
_call_decoder = msgspec.json.Decoder(Union[LoadProcessor, Validate, Start, OpenGpuMemory, Edit, Process])
_fork_decoder = msgspec.json.Decoder(Fork)
_event_decoder: msgspec.json.Decoder[ZygoteEvent] = msgspec.json.Decoder(ZygoteEvent)

encode = _encoder.encode
decode_call = _call_decoder.decode
decode_fork = _fork_decoder.decode
decode_event = _event_decoder.decode
