"""The events of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from logitport.core.row_edits import Edit


@dataclass(frozen=True)
class SessionOpened:
    """A session; the first event of its part of the file.

    Attributes:
        vocab_size: width of the logits.
        datatype: of the logits: "FP32", "FP16" or "BF16".
        model_name, tokenizer_id, engine: as the engine has named them.
        eos_token_ids: ids that end a sequence.
        sdk: version of the SDK that wrote the recording.
        started: when, in seconds since the Unix epoch.
    """

    vocab_size: int
    datatype: str
    model_name: str = ""
    tokenizer_id: str = ""
    engine: str = ""
    eos_token_ids: tuple[int, ...] = ()
    sdk: str = ""
    started: float = 0.0


@dataclass(frozen=True)
class RecordedProcessor:
    """A processor of a chain.

    Attributes:
        builtin: its name, if it is installed with the server; otherwise "".
        name: the registered name under which the request named it; "" for none.
        digest: of a shipped one; "" for an installed one, and if the server has not stated it.
        class_name: of a shipped one, if this is known.
        params: its parameters.
        payload: the shipped processor, serialized; "" if it is not recorded.
    """

    builtin: str = ""
    name: str = ""
    digest: str = ""
    class_name: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    payload: str = field(default="", repr=False)

    @property
    def display_name(self) -> str:
        """A name for display."""
        return self.builtin or self.class_name or self.name or self.digest[:12] or "(unknown)"


@dataclass(frozen=True, eq=False)
class RequestBegan:
    """A request, with its history before its next step. Repeated after steps that were dropped.

    Attributes:
        key: its number in the session.
        request_id: the engine's name for it.
        prompt, output: its ids, int32.
        processors: its chain.
        sampling_params: the engine's.
        on_error: "abort" or "skip".
    """

    key: int
    request_id: str
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    processors: tuple[RecordedProcessor, ...]
    sampling_params: Mapping[str, Any]
    on_error: str = "abort"


@dataclass(frozen=True, eq=False)
class TopLogits:
    """Some logits of a row.

    Attributes:
        ids: int32[n], the best first.
        logits: float32[n].
        log_sum: the logarithm of the sum of exp(logit) over the whole row.
    """

    ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    log_sum: float


@dataclass(frozen=True, eq=False)
class RecordedRow:
    """One row of a request in a step.

    Attributes:
        offset: number of draft tokens that it has seen.
        edits: its edits in their order; None if a processor or a program has read its logits, or they did not arrive.
        before: its best logits before the chain; None if they were not sampled.
        after: the logits of the same ids, and the best ones, after the chain.
    """

    offset: int = 0
    edits: tuple[Edit, ...] | None = ()
    before: TopLogits | None = None
    after: TopLogits | None = None


@dataclass(frozen=True, eq=False)
class RequestStepped:
    """The part of a request in a step of the session.

    Attributes:
        key: of the request.
        index: number of its step, from 0; dropped ones are counted.
        base_length: length of the history that stayed. Ids after it were cut off by `Session.rewind`.
        new_ids: ids that were appended, int32.
        draft_ids: draft tokens, int32; not part of the history.
        rows: its rows.
        greedy: whether all requests of the session's step were greedy; some processors are left out then.
        finished: whether the engine has received the edits.
        error: why it failed in this step; "" if it did not.
    """

    key: int
    index: int
    base_length: int
    new_ids: NDArray[np.int32]
    draft_ids: NDArray[np.int32]
    rows: tuple[RecordedRow, ...]
    greedy: bool = False
    finished: bool = True
    error: str = ""


@dataclass(frozen=True)
class RequestEnded:
    """The engine has removed a request."""

    key: int


@dataclass(frozen=True)
class StepsDropped:
    """Steps that were not recorded, because too much waited to be written.

    Attributes:
        steps: number of steps of requests.
    """

    steps: int


@dataclass(frozen=True)
class RecordingStopped:
    """The end of a session's recording.

    Attributes:
        reason: "closed" by the session, "max_bytes" reached, or "error".
        message: more about it.
        dropped_steps: how many steps of requests were dropped in all.
    """

    reason: str
    message: str = ""
    dropped_steps: int = 0


Event: TypeAlias = Union[SessionOpened, RequestBegan, RequestStepped, RequestEnded, StepsDropped, RecordingStopped]
