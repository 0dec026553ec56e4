"""The seam that every dialect implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from logitport import payload
from logitport.core.edits import Edits

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import torch

    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport_server.principals import TrustDomain
    from logitport_server.shared_memory.regions import Region


# What a processor says of the rows of a call: of each, or of all in columns, where row i is that of the i-th state.
EditsResult: TypeAlias = "Sequence[RowEdits] | Edits"


def by_row(edits: EditsResult, num_rows: int) -> Sequence[RowEdits]:
    """What was said of each row of a call; nothing at all where its processor reads logits."""
    return edits.unpack(num_rows) if isinstance(edits, Edits) else edits


def is_greedy(temperature: object) -> bool:
    """Whether an engine that is given this sampling temperature takes the largest logit: vLLM's bound, its default 1.0.

    Source: `_SAMPLING_EPS` in vllm/sampling_params.py.
    """
    return isinstance(temperature, int | float) and temperature < 1e-5


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a processor may know about a request.

    Attributes:
        request_id: the engine's name for it.
        history: its tokens; live, kept by the session.
        sampling_params: the engine's.
        vocab_size: width of the logits.
        tokenizer_id: the engine's tokenizer; "" if it has not said.
        eos_token_ids: the ids that end a sequence; empty if the engine has not said.
        max_requests: how many requests its session may hold at once.
        device: where the logits will be that its processors get, as torch names it.
        caller: identity of the party that the request belongs to; equal for all its requests.
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
    """The states of the rows of a call. It never changes, so a dialect can recognize a list by its identity."""

    __slots__ = ("__weakref__",)


class Dialect(ABC):
    """Calls one processor for many requests. A request's state is opaque to everyone else.

    Any method may raise anything: what it runs is somebody else's code.

    Attributes:
        isolated: whether the processor runs in another process, so that others can be called meanwhile.
        argmax_invariant: whether it never changes which logit of a row is the largest; it is not called in steps whose
            requests are all greedy, if nothing that may change it stands behind it in the chain.
        reads_logits: whether its processors are given logits.
        takes_drafts: whether it is called once for the rows of all draft offsets, with histories that hold no drafts;
            else once for each offset, with histories that hold the drafts before it.
        drafts: the draft tokens before each row of a call, if it takes them and its step has any; else ().
        processor: the instance; None if it is elsewhere.
        name: what it is called in messages: a built-in's name, or what `Payload.display_name` says.
        key: what it is known by: a built-in's name, or a digest.
        shipped: whether a client sent the processor's code.
        takes_long: whether its calls may take milliseconds, so that others are served meanwhile.
        domain: the trust domain whose worker runs it; None if it runs in this process.
        failed: what single states raised before the last call, by their place in it; it served the others.
    """

    isolated: ClassVar[bool] = False
    domain: TrustDomain | None = None
    reads_logits: bool
    takes_drafts: bool = False
    drafts: Sequence[Sequence[int]] = ()
    argmax_invariant: bool = False
    failed: Mapping[int, BaseException] = MappingProxyType({})

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        """For a processor's class, or an instance. Raises LoadFailed if none can be made of it."""
        self.processor = payload.instantiate(processor) if isinstance(processor, type) else processor
        self.name = self.key = name
        self.shipped = shipped
        # A logits-free one says it; nobody else is known to be quick.
        self.takes_long = bool(getattr(self.processor, "takes_long", True))
        self._scratch: torch.Tensor | None = None

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],  # noqa: ARG002
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        """Raises whatever the processor's own `validate_params` raises, if it has one."""
        validate_params = getattr(self.processor, "validate_params", None)
        if validate_params is not None:
            validate_params(params)

    @abstractmethod
    def start(self, context: RequestContext, params: dict[str, Any]) -> Any:
        """State for a request, from its history of any length."""

    @abstractmethod
    def token_callback(self, state: Any) -> Callable[[int], object] | None:
        """What to call with each id that has just joined the history; None if nothing."""

    @abstractmethod
    def rewind(self, state: Any) -> None:
        """The history has just been cut back to its present length. Raises StateLost as `check_rebuildable`."""

    @abstractmethod
    def rebuild(self, state: Any) -> None:
        """Ids have joined the history of which this state was not told. Raises StateLost as `check_rebuildable`."""

    def check_rebuildable(self, state: Any) -> None:
        """Whether `start` would give this state again.

        Raises:
            StateLost: the state is not a function of the history.
        """

    def scratch(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for rows that do not lie together, which this processor alone gets, step after step.

        Returns:
            float[rows, vocab_size], uninitialised, of the width, dtype and device of `like`.
        """
        if self._scratch is None or len(self._scratch) < rows or self._scratch.dtype != like.dtype:
            self._scratch = like.new_empty((rows, like.shape[1]))
        return self._scratch[:rows]

    def borrow(self, region: Region | None) -> None:
        """Logits that lie in this region may be processed where they are; None: no more. Only where `isolated`."""

    def begin(self, states: Sequence[Any], logits: torch.Tensor | None) -> bool:
        """Begin a call, if that can be done without waiting; only where `isolated`.

        If it was begun, `edit` or `process`, with the same arguments, is what must come next; or else `abandon`.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Give up the call that was begun, if there is one."""

    def edit(self, states: Sequence[Any]) -> EditsResult:
        """The edits of each row; only where `reads_logits` is False."""
        raise NotImplementedError

    def process(self, states: Sequence[Any], logits: torch.Tensor) -> torch.Tensor:
        """Process float[rows, vocab_size], in place or not; only where `reads_logits` is True."""
        raise NotImplementedError
