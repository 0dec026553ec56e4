from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


INTERFACE: int = 17

def set_error_factory(factory: object) -> None:
    """
    Set the callable (code, message) that makes the exception for an error of the core.
    """

def extend_crc_by_table(crc: int, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    Extend a checksum by ids, int32[n], as on a processor without carry-less multiplication.
    """

class MemoryAccount:
    """The memory that the histories and states of one principal hold."""

    def __init__(self, limit: int) -> None: ...

    @property
    def limit(self) -> int:
        """Bytes that may be held."""

    @property
    def held(self) -> int:
        """Bytes that are held."""

    def add(self, num_bytes: int) -> bool:
        """
        Add bytes. Returns False, and adds none, if more than the limit would be held.
        """

    def remove(self, num_bytes: int) -> None:
        """Remove bytes that were added."""

class History:
    """The token history of one request."""

    def __init__(self, prompt_token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output_token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def __len__(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def prompt_length(self) -> int: ...

    @property
    def draft_tokens(self) -> int: ...

    @draft_tokens.setter
    def draft_tokens(self, arg: int, /) -> None: ...

    @property
    def rows_applied(self) -> int: ...

    def add_rows(self, sampled: int, rows: int) -> None: ...

    def drop_rows(self) -> None: ...

    @property
    def token_ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def prompt_token_ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def output_token_ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def last_output(self) -> int | None: ...

    def at(self, position: int) -> int: ...

    def append(self, token_id: int) -> None: ...

    def extend(self, token_ids: Sequence[int]) -> None: ...

    def rewind(self, length: int) -> None: ...

    def follow(self, other: History, prompt_length: int) -> None:
        """Become a view of another history, with a prompt of this length."""

    def cut_token_ids(self, length: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    def crc(self) -> int: ...

    def begin_charge(self, account: MemoryAccount, fixed: int, per_id: int, per_output_id: int) -> bool:
        """
        Charge the memory of the history and its states to an account. Returns False if it has no room.
        """

    def charge(self, length: int) -> bool:
        """
        Charge the memory of this length. Returns False if the account has no room.
        """

    @property
    def memory_limit(self) -> int:
        """Limit of the account; 0 without one."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

class State:
    """The state of one processor for one request."""

    @property
    def advances(self) -> bool:
        """Whether `advance` does anything."""

    def advance(self, history: History, token_id: int) -> None:
        """Follow a history to which an id was just appended."""

    def rewind(self, history: History) -> None:
        """Follow a history that was just cut back."""

    def restart(self, history: History) -> None:
        """Follow a history from its beginning."""

    def edit(self, history: History, vocab_size: int) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """
        The edits of one row: rows, kinds, offsets, ids and values, as in `Edits`.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

def edit_rows(states: Sequence[State], histories: Sequence[History], vocab_size: int, uses_bitmasks: bool = False) -> tuple[tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]], list[tuple[int, str, bytes]]]:
    """
    The edits of the rows of states: rows, kinds, offsets, ids and values, as in `Edits`. With `uses_bitmasks`, lists that are longer than a bitmask become one.

    Then row, name and values of each of their events.
    """

class TokenList(State):
    """Denies ids, always or below a length."""

    def __init__(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], below: int = -1) -> None: ...

class BiasList(State):
    """Adds a value to the logit of each id."""

    def __init__(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Sequence[float]) -> None: ...

class NGramIndex(State):
    """Denies ids that would repeat an n-gram."""

    def __init__(self, history: History, size: int, window: int, whitelist: Sequence[int], vocab_size: int) -> None: ...

class ThinkingBlocks(State):
    """Closes thinking blocks that have used up their budget."""

    def __init__(self, history: History, budget: int, start: Sequence[int], end: Sequence[int], newline: int | None, end_text: Sequence[int] = (), soft_from: int = -1, min_thinking: int = 0) -> None: ...

class BannedSequences(State):
    """Denies ids that would complete a sequence."""

    def __init__(self, sequences: Sequence[Sequence[int]], generated_only: bool) -> None: ...

class LoopBreaker(State):
    """Breaks cycles of the output."""

    def __init__(self, history: History, repeats: int, max_period: int, min_length: int, plain_repeats: int, action: int, ends: Sequence[int], start: Sequence[int], end: Sequence[int], newline: int | None) -> None: ...

    @property
    def cycle(self) -> tuple[int, int] | None:
        """
        The period, and the position of the first id, of the cycle at the history's end; None without one.
        """

class PhasedState(State):
    """Runs another state in the blocks of one phase."""

    def __init__(self, state: State, history: History, phase: int, tags: Sequence[tuple[Sequence[int], int, int, bool]], starts_in: int, opening_id: int = -1, newline: int = -1) -> None: ...

class PhaseTracker:
    """The blocks of one history, and their phases."""

    def __init__(self, history: History, tags: Sequence[tuple[Sequence[int], int, int, bool]], starts_in: int, opening_id: int = -1, newline: int = -1) -> None: ...

    @property
    def phase(self) -> int:
        """Number of the phase of the history's next id."""

    @property
    def begin(self) -> int:
        """The history's length before its block."""

    def restart(self, history: History) -> None:
        """Read a history from its beginning."""

    def read(self, history: History) -> None:
        """Follow a history after ids were appended."""

    def rewind(self, history: History) -> None:
        """Follow a history that was just cut back."""

    def exempt_id(self, history: History) -> int:
        """The id that no edit may change now; -1 if there is none."""

class Penalty(State):
    """Lowers the logits of generated ids."""

    def __init__(self, history: History, penalty: float, per_occurrence: bool) -> None: ...

def edits_proven(rows: object, kinds: object, offsets: object, ids: object, values: object, num_rows: int, vocab_size: int) -> bool:
    """
    Whether columns, objects with little-endian bytes, are valid edits in ascending order of rows.
    """

def apply_edits(rows: object, kinds: object, offsets: object, ids: object, values: object, logits: object, is_bf16: bool) -> bool:
    """
    Apply columns of edits to logits, [rows, vocab_size], of torch or numpy.

    With is_bf16, they are an array of int16 with the bits of bfloat16. Returns False, and has changed nothing, if it cannot.
    """

class Datatype(enum.Enum):
    FP32 = 0

    FP16 = 1

    BF16 = 2

class StepReply:
    """
    A reply with edits, counts and events only. The edits were proven for logits of a shape and datatype.
    """

    def apply(self, logits: object) -> bool:
        """
        Apply the edits to logits of torch or numpy.

        Returns False, and has changed nothing, if it cannot.
        """

    @property
    def rows_applied(self) -> dict[str, int]:
        """Number of rows by processor. A dict of its own."""

    @property
    def events(self) -> list[tuple[int, str, int, str, bytes, int]] | None:
        """
        Of each event: slot, processor, position, name, values and number of events that were left out. None without events.
        """

    @property
    def all_denied_rows(self) -> tuple[int, ...]:
        """Rows in which edits left no id allowed."""

    @property
    def ended_admissions(self) -> int:
        """As StepEdits.ended_admissions."""

    @property
    def should_move(self) -> bool:
        """As StepEdits.should_move."""

    @property
    def columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The edits as `EditColumns`."""

class ReplyReader:
    """Reads the replies to the steps of a session."""

    def __init__(self, vocab_size: int, datatype: Datatype) -> None: ...

    def read(self, data: bytes, seq: int, num_rows: int) -> StepReply | None:
        """
        Read and check a serialized `SessionResponse` to the step with this number.

        Returns None if the Python version has to read it: it has another field, or is not proven to be valid.
        """

class EarlyReceiver:
    """
    Receives and reads the replies that are left to it, on a thread that needs no GIL.

    The end of this object shuts the connection down.
    """

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        """
        `descriptor`: of a connected socket, which stays the caller's. `max_bytes`: of a frame; larger ones are the caller's.
        """

    def leave(self, reader: ReplyReader | None, seq: int, num_rows: int) -> None:
        """
        Leave the reply to the step with this number to the thread. Without `reader`, it is received only.
        """

    def claim(self) -> StepReply | bytes:
        """
        Return what the thread has received: the reply that was expected, or the bytes of a frame after its length.

        Where these are no whole frame, the rest is the caller's.
        """

    def join(self) -> None:
        """Wait for the thread, after the connection was shut down."""

class StepFrameWriter:
    """Writes the frames of steps with the same requests in the same order."""

    def read(self, new_token_ids: object, drafts: object | None, rows: object | None, draft_parents: object | None) -> bool:
        """
        Read the arguments of a step.

        Returns False if the Python version has to read them.
        """

    def serialize(self, seq: int) -> bytes:
        """Serialize the frame of the step."""

    def extend(self) -> None:
        """Append the new ids of the step to the histories."""

def step_frame_writer(new_token_ids: object, held: object, vocab_size: int) -> StepFrameWriter | None:
    """
    Make the writer for steps with these requests.

    Returns None if the Python version has to read the arguments.
    """

class Transport(enum.Enum):
    """How a frame arrived."""

    GRPC = 0

    LOCAL = 1

class Batch:
    """
    The requests of one session whose chains the core runs, and their steps.
    """

    def __init__(self, vocab_size: int, max_draft_tokens: int, max_tokens: int, max_work: int, max_bytes: int, step_bounds: Sequence[float], processor_bounds: Sequence[float]) -> None: ...

    def put(self, slot: int, generation: int, history: History, chain: list[tuple[State, str, str]]) -> None:
        """
        Add a request: for each place of its chain a state, and the key and the display name of the processor.
        """

    def remove(self, slot: int) -> None:
        """Remove the request of a slot, if there is one."""

    def step(self, data: bytes, seq: int, ended_admissions: int, should_move: bool, transport: Transport) -> bytes | None:
        """
        Compute a step whose requests were all put here: from a serialized `SessionRequest` with this number.

        Returns the serialized `SessionResponse`. None if the step is refused: `step_partly` then refuses it, too.
        """

    def serve(self, descriptor: int, received: bytes, max_bytes: int, last_seq: int, should_move: bool, transport: Transport, seconds: float, max_steps: int = 18446744073709551615) -> tuple[bool, bytes, int, bytes, int]:
        """
        Answer the frames of a connected socket, as `step`, while they are usual steps of at most `max_bytes`.

        Returns when the next one is not, or arrives after `seconds` or `max_steps`, and after a reply of over 1 MiB: whether to call again; what was received and not answered; the number of the last frame that was answered; the reply to it, or b""; and the error number if it could not be sent, or 0.
        """

    def step_partly(self, data: bytes) -> tuple[tuple[bytes, bytes, bytes, bytes, bytes], bytes, list[tuple[str, str, int, float]], list[tuple[int, int, str, int, str, bytes, int]]] | None:
        """
        Compute the part of a step whose requests were put here: from a serialized `SessionRequest`.

        Returns the edits as `EditColumns`; the rows with no id left; key, display name, rows and seconds of each processor; and row, slot, processor, position, name, values and draft offset of each event. None if the step is refused.
        """

    def take_counts(self) -> tuple[list[tuple[list[int], float, list[int], float, int, int]], list[tuple[str, int, list[int], float]], dict[str, int]]:
        """
        The counts of `step` and `serve` since the last call. On any thread.

        For gRPC and for the local transport: buckets and sum of the seconds to compute a step, the same of the seconds that it has waited, which are 0, and of `serve` on the local transport the bytes received and sent. Then for each processor: display name, rows, buckets and sum of its seconds. Then the number of events by name.
        """

    def activity(self) -> tuple[int, float]:
        """
        The number of steps of `step` and `serve`, and when the last one ended, in monotonic seconds.
        """
