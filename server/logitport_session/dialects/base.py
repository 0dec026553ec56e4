"""The interface that every dialect implements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from logitport import payload
from logitport.core.edits import Edits
from logitport.core.tensors import empty_rows
from logitport.errors import InvalidArgument, LogitportError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import torch

    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.core.row_events import RowEvent
    from logitport.payload import Signature
    from logitport_core._core import State
    from logitport_programs.program import Program
    from logitport_session.shared_memory.regions import Region
    from logitport_session.trust.principals import TrustDomain


# A processor's edits for the rows of a call: one RowEdits per row, or columns; their row i belongs to the i-th state.
EditsResult: TypeAlias = "Sequence[RowEdits] | Edits"


def by_row(edits: EditsResult, num_rows: int) -> Sequence[RowEdits]:
    """The edits of each row of a call, unpacked if they are columns."""
    return edits.unpack(num_rows) if isinstance(edits, Edits) else edits


def events_of(rows: Sequence[RowEdits]) -> list[tuple[int, RowEvent]]:
    """The events of the rows of a call, with the index of each row."""
    return [(index, event) for index, row in enumerate(rows) for event in row.events]


def is_greedy(temperature: object) -> bool:
    """Whether this sampling temperature means greedy sampling, by vLLM's bound. An absent one is vLLM's default, 1.0.

    Source: `_SAMPLING_EPS` in vllm/sampling_params.py.
    """
    return isinstance(temperature, int | float) and temperature < 1e-5


def denies_without(declared: object) -> tuple[str, ...] | None:
    """Return `Dialect.denies_without` of a processor with this value of `only_denies`."""
    if declared is True:
        return ()
    return tuple(map(str, declared)) if declared and isinstance(declared, tuple | list) else None


def is_method(method: object, default: object) -> bool:
    """Return whether a method is this method of a base class, and not an override."""
    return getattr(method, "__func__", None) is getattr(default, "__func__", default)


# Upper bound: a set of token ids takes 31 bytes for each byte of JSON (tests/server/session/test_principal_memory.py).
BYTES_PER_PARAMS_BYTE = 32


@dataclass(slots=True)  # not frozen: that takes longer to create than all else, and one is created for each request
class RequestContext:
    """The facts about a request that a processor may read.

    Attributes:
        request_id: the engine's name for the request.
        history: the request's tokens; live, updated by the session.
        sampling_params: the engine's sampling parameters.
        vocab_size: width of the logits.
        tokenizer_id: the engine's tokenizer; "" if unknown.
        eos_token_ids: the ids that end a sequence; empty if unknown.
        max_requests: how many requests the session may hold at once.
        device: torch's name of the device of the processors' logits.
        caller: identity of the party that owns the request; equal for all its requests.
    """

    request_id: str
    history: History
    sampling_params: Mapping[str, Any]
    vocab_size: int
    tokenizer_id: str = ""
    eos_token_ids: tuple[int, ...] = ()
    max_requests: int = 1024
    device: str = "cpu"
    caller: Hashable = None


class States(list[Any]):
    """The states of the rows of a call. The list never changes, so a dialect can recognize it by its identity."""

    __slots__ = ("__weakref__",)


class Dialect(ABC):
    """Calls one processor for many requests. Only the dialect reads a request's state.

    Any method may raise any exception, because it runs third-party code.

    Attributes:
        checks_sampling_params: whether `validate` reads the sampling parameters.
        reusable: whether the instance, after the requests of one session have left, can serve another session.
        isolated: whether the processor runs in a worker, so that other processors can run at the same time.
        argmax_invariant: whether the processor never changes which logit of a row is the largest. It is skipped when
            all requests of a step are greedy, unless a later processor of the chain may change the largest logit.
        reads_logits: whether the processor takes logits.
        takes_drafts: True: called once for the rows of all draft offsets, with histories that hold no drafts.
            False: called once per draft offset, with histories that hold the drafts before that offset.
        row_safe: whether no row of a call can fail, or change, another one.
        takes_rows: whether one call of the author's code takes the rows of several requests.
        seconds: how long a call of `process` may take, if the dialect can stop between rows: the rows that are left
            then fail.
        engine_program: the program that the engine runs at this place of the chain; None if it runs none.
        signature: the signature of that program, for the engine to check; None if it is not signed.
        drafts: the draft tokens before each row of a call, if `takes_drafts` and the step has any; else ().
        processor: the instance; None if it is in another process, or not yet created.
        name: the processor's name in messages: a built-in's name, or `Payload.display_name`.
        key: the processor's identity: a built-in's name, or a digest.
        shipped: whether a client sent the processor's code.
        takes_long: whether a call may take milliseconds. Its requests are then admitted in the background.
        denies_without: names of parameters; for a request with none of them, the processor declares that it only
            denies ids, see `CustomLogitProcessor.only_denies`. None if it does not declare that.
        domain: the trust domain of the worker that runs the processor; None if it runs in this process.
        failed: exceptions of single states in the last call, by their index in it; the other states were served.
        events: the events of the last call, with the index of their state in it, in ascending order.
        bytes_per_id: memory of a state in this process for each id of its history, at most.
        bytes_per_output_id: the same for each id after the prompt, in addition.
        bytes_per_prompt_id: the same for each distinct id of the prompt.
        bytes_per_params_byte: the same for each byte of the parameters as JSON, with the parsed parameters.
    """

    checks_sampling_params: ClassVar[bool] = False
    reusable: ClassVar[bool] = False
    isolated: ClassVar[bool] = False
    row_safe: ClassVar[bool] = False
    takes_rows: ClassVar[bool] = False
    seconds: float = math.inf
    domain: TrustDomain | None = None
    engine_program: Program | None = None
    signature: Signature | None = None
    reads_logits: bool
    takes_drafts: bool = False
    drafts: Sequence[Sequence[int]] = ()
    argmax_invariant: bool = False
    failed: Mapping[int, BaseException] = MappingProxyType({})
    events: Sequence[tuple[int, RowEvent]] = ()
    bytes_per_id: int = 0
    bytes_per_output_id: int = 0
    bytes_per_prompt_id: int = 0
    bytes_per_params_byte: int = BYTES_PER_PARAMS_BYTE

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        """Takes a processor's class, or an instance. Raises PayloadError if the class cannot be instantiated."""
        self.processor = payload.instantiate(processor) if isinstance(processor, type) else processor
        self.name = self.key = name
        self.shipped = shipped
        # Only logits-free processors declare this; any other may be slow.
        self.takes_long = bool(getattr(self.processor, "takes_long", True))
        self.denies_without = denies_without(getattr(self.processor, "only_denies", False))
        self._scratch: Any = None

    @property
    def follows_from_history(self) -> bool:
        """Whether states follow from the histories of their requests alone."""
        return not self.reads_logits

    @property
    def checks_params(self) -> bool:
        """Whether `validate` can refuse parameters. If not, it need not be called."""
        return True

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],  # noqa: ARG002
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        """Call the processor's own `validate_params`, if it has one. Raises the errors of `_check_params`."""
        self._check_params(self._own_check(), params)

    def _own_check(self) -> Callable[[Any], object] | None:
        """Return the processor's check of a request's parameters, or None."""
        check: Callable[[Any], object] | None = getattr(self.processor, "validate_params", None)
        return check

    def _check_params(self, check: Callable[[Any], object] | None, params: Any) -> None:
        """Call the processor's check of a request's parameters, if there is one.

        Raises:
            InvalidArgument: the check refused them, with its message.
            Exception: any other exception of the check, unchanged.
        """
        if check is None:
            return
        try:
            check(params)
        except LogitportError:
            raise
        except Exception as error:
            if not self._is_refusal(error):
                raise
            raise InvalidArgument(f"processor {self.name}: {error}") from error

    def _is_refusal(self, error: Exception) -> bool:
        """Whether an exception of the processor's check means that the parameters cannot be used."""
        return isinstance(error, ValueError)

    @abstractmethod
    def start(self, context: RequestContext, params: dict[str, Any]) -> Any:
        """Create the state of a request, from a history of any length."""

    def start_like(self, earlier: Any, context: RequestContext, params: dict[str, Any]) -> Any:  # noqa: ARG002
        """Create the state of a request as `start`.

        Args:
            earlier: the state of a request of the same session that was created with the same `params`.
            context: the request.
            params: its parameters.
        """
        return self.start(context, params)

    def token_callback(self, state: Any) -> Callable[[int], object] | None:  # noqa: ARG002
        """The function to call with each id right after it was appended to the history; None if none is needed."""
        return None

    @abstractmethod
    def rewind(self, state: Any) -> None:
        """Follow a history that was cut back to its present length. Raises StateLost like `check_rebuildable`."""

    def rebuild(self, state: Any) -> None:
        """Update a state that missed ids appended to its history. Raises StateLost like `check_rebuildable`."""
        self.rewind(state)

    def compiled_state(self, state: Any) -> State | None:  # noqa: ARG002
        """The request's state if it is one of the compiled core, and calls of the processor do nothing but call it."""
        return None

    def check_rebuildable(self, state: Any) -> None:
        """Check that `start` would create this state again.

        Raises:
            StateLost: the state is not a function of the history.
        """

    def for_engine(self) -> Dialect | None:
        """The dialect for requests where the engine runs the processor itself; None if only the server can run it."""
        return None

    @property
    def on_server(self) -> Dialect:
        """The dialect of the processor on the server."""
        return self

    def scratch(self, rows: int, like: Any) -> Any:
        """Memory for rows that are not adjacent. Only this processor uses it, and reuses it from step to step.

        Returns:
            float[rows, vocab_size], uninitialised, with the width, kind, dtype and device of `like`.
        """
        if self._scratch is None or len(self._scratch) < rows or self._scratch.dtype != like.dtype:
            self._scratch = empty_rows(rows, like)
        return self._scratch[:rows]

    def borrow(self, region: Region | None) -> None:
        """Let calls process logits of this region in place; None ends that. Only where `isolated`."""

    def edit(self, states: Sequence[Any]) -> EditsResult:
        """Return the edits of each row; only where `reads_logits` is False."""
        raise NotImplementedError

    def process(self, states: Sequence[Any], logits: torch.Tensor) -> torch.Tensor:
        """Process float[rows, vocab_size], in place or not; only where `reads_logits` is True."""
        raise NotImplementedError
