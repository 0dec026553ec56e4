"""The two base classes that authors derive from.

`CustomLogitProcessor` is SGLang's contract: it receives logits. `EditProcessor` receives no logits: it receives each
request's new tokens and returns edits, which can be computed while the model is still running.
The base class declares the kind; nothing is inferred from what a processor does. (A logits-free class that overrides
`__call__` thereby declares itself logits-reading.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from logitport import dialects, payload
from logitport.core.declared import check_declared, complete_params, show_parameters
from logitport.core.edits import Edits, RowEdits
from logitport.core.history import History
from logitport.core.hook_names import warn_of_near_misses
from logitport.errors import InvalidArgument, PayloadError
from logitport.ops import apply_edits
from logitport.payload.wire_names import SGLANG_MODULE
from logitport.phases import PHASES, known_tags, read_phase, tags_for, tracker_of
from logitport.tokenizers import operator_tokenizer

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import torch

    from logitport.phases import PhaseTags, PhaseTracker
    from logitport.tokenizers import Tokenizer

# Of `EditProcessor`, apart from `edit`: a class without it cannot be created.
_HOOKS = ("start", "advance", "rewind", "edit_batch", "validate_params", "validate_for")


@payload.wire_name(SGLANG_MODULE, "CustomLogitProcessor")
class CustomLogitProcessor(ABC):
    """A processor that reads or writes logits. SGLang 0.5.23's contract, unchanged.

    A class that declares its parameters in `params`, such as `{"alpha": Annotated[float, Float(ge=0), "…"]}`, gets a
    section about them in its docstring.

    Attributes:
        only_denies: declares that the processor removes ids, and that the differences between the logits that it leaves
            stay the same. A tuple of names declares that for requests without these parameters.
    """

    only_denies: ClassVar[bool | tuple[str, ...]] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        show_parameters(cls)

    @abstractmethod
    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        """Process the rows of one step that belong to requests with this processor.

        Args:
            logits: float[rows, vocab_size]. May be edited in place.
            custom_param_list: one dict a row: the request's parameters, the same dict for the request's whole life,
                so that state can be kept in it. Its key `__req__` holds an object with `rid`, `origin_input_ids`
                (the prompt) and `output_ids`.

        Returns:
            float[rows, vocab_size], the argument or another tensor. Another floating dtype is cast back.
        """

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Check a request's parameters when it is admitted. Override to refuse bad ones early.

        Raises:
            InvalidArgument: the parameters cannot be used; only that request fails. A service converts any other
                ValueError to this one.
        """

    @classmethod
    def to_str(cls) -> str:
        """Serialize the class to a string that logitport and SGLang load: see `logitport.payload`.

        Raises:
            PayloadError: something that the class uses cannot be serialized; the message says what to do.
        """
        return payload.dumps(cls)

    @classmethod
    def from_str(cls, serialized: str) -> CustomLogitProcessor:
        """Make an instance of the class in `serialized`. Runs the code in it: only for strings that you trust.

        Raises:
            PayloadError: not JSON, without "callable", or not the hexadecimal digits of a pickle.
            PayloadError: the code in it is of another Python minor version.
            PayloadError: unpickling or creating the instance raised, or it is not a processor class.
        """
        loaded = payload.loads(payload.parse(serialized))
        if dialects.recognise(loaded)[1] not in dialects.OF_CLASSES:
            raise PayloadError("the payload's processor is of another dialect; only a service can call it")
        processor: CustomLogitProcessor = payload.instantiate(loaded)
        return processor


class EditRequest:
    """One request as one `EditProcessor` sees it.

    Attributes:
        params: the request's parameters for this processor; if it declares them, all of them, with their defaults.
        history: the request's tokens; up to date at every call.
        vocab_size: width of the logits; token ids are valid below it.
        tokenizer_id: the engine's name for its tokenizer; "" if unknown.
        eos_token_ids: the engine's ids that end a sequence; empty if unknown.
        tokenizer: the operator's tokenizer of that name. Reading it raises InvalidArgument if it is missing.
        phase: phase of the output that the next id belongs to: `thinking`, `answer`, `tool_call` or, between two blocks
            of some templates, `header`. None if the tags of the model are not known.
        caller: identity of the party that the request belongs to; equal for all its requests. None if it is unknown.
        state: the processor's own, None at first; lives as long as the request.
    """

    __slots__ = (
        *("_phase_tags", "_phase_tags_read", "_tracker", "caller", "eos_token_ids"),
        *("history", "params", "state", "tokenizer_id", "vocab_size"),
    )

    def __init__(
        self,
        params: Mapping[str, Any],
        history: History,
        vocab_size: int,
        *,
        tokenizer_id: str = "",
        eos_token_ids: tuple[int, ...] = (),
        caller: Hashable = None,
        phase_tags: PhaseTags | None = None,
    ) -> None:
        self._phase_tags = phase_tags
        self._phase_tags_read = False
        self._tracker: PhaseTracker | None = None
        self.params = params
        self.history = history
        self.vocab_size = vocab_size
        self.tokenizer_id = tokenizer_id
        self.eos_token_ids = eos_token_ids
        self.caller = caller
        self.state: Any = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The operator's tokenizer with the session's `tokenizer_id`, or the only one if the session names none."""
        return operator_tokenizer(self.tokenizer_id)

    @property
    def phase(self) -> str | None:
        if self._tracker is None:
            if not self._phase_tags_read:
                self._phase_tags_read = True
                self._phase_tags = self._phase_tags or known_tags(self.tokenizer_id)
            if self._phase_tags is None:
                return None
            self._tracker = tracker_of(self._phase_tags, self.history)
        self._tracker.read(self.history)
        return PHASES[self._tracker.phase]

    def history_cut(self, *, wholly: bool = False) -> None:
        """Follow `history` after it was cut back, or `wholly` replaced. Only the caller of the hooks calls it."""
        if wholly:
            self._tracker = None
        elif self._tracker is not None:
            self._tracker.rewind(self.history)


class EditProcessor(CustomLogitProcessor):
    """A processor with an effect that follows from the token history alone. It receives no logits.

    Override `edit`. Also override `start` and `advance`, and keep state in `request.state`, where reading the whole
    history at every step would be slow. State must be a function of the history: `start` rebuilds it whenever the
    history is cut back (a rejected draft, a preemption), unless `rewind` is overridden with something faster.

    Every processor accepts the parameter `phase`, which it does not see: `thinking`, `answer` or `tool_call`. It then
    makes no edits outside that phase of the output, and the ids before the phase's present block are the prompt for it.
    The parameter `phase_tags` has the model's tags; by default, the operator's tokenizer has them (docs/reasoning.md).

    To declare the parameters of requests, set the class attribute `params` to a dict of `Float`, `Int`, `Bool` or
    `TokenIds` by name. Then requests with other keys, types or values are refused when they are admitted.

    A class with a method that looks like a misspelled hook, such as `advence`, emits a `ProcessorWarning`.

    Attributes:
        takes_long: whether a call of an installed processor may take milliseconds. Its requests can be admitted in the
            background.
    """

    takes_long: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_declared(cls)
        warn_of_near_misses(cls, EditProcessor, _HOOKS, stacklevel=3)  # above ABCMeta.__new__

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Check a request's parameters when it is admitted; by default against the declared ones.

        Override to check more, and call `super().validate_params(params)` first.

        Raises:
            InvalidArgument: the parameters cannot be used; only that request fails.
        """
        complete_params(cls, params)

    def validate_for(self, caller: Hashable, params: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Check a request's parameters when it is admitted; by default `validate_params`.

        Override where the check is expensive, to divide the work fairly between callers.

        Args:
            caller: see `EditRequest.caller`.
            params: the request's parameters for this processor.

        Raises:
            InvalidArgument: the parameters cannot be used; only that request fails.
        """
        self.validate_params(params)

    def start(self, request: EditRequest) -> None:
        """Build `request.state` from a history of any length. It is None, or the state of an earlier history."""

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Update `request.state`: `token_id` has just joined `request.history`."""

    def rewind(self, request: EditRequest) -> None:
        """Update `request.state`: `request.history` has just been cut back to its present length."""
        self.start(request)

    @abstractmethod
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """Edit the logits of the request's next token, by calling methods of `edits`."""

    def edit_batch(self, requests: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        """Call `edit` for all rows that share this processor in one step. Override to compute them together."""
        for request, row_edits in zip(requests, edits, strict=True):
            returned: object = self.edit(request, row_edits)
            if returned is not None:
                raise _returned_something(returned)

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        """Apply the edits to a tensor, in place, as an SGLang processor; for use without a service.

        The whole history is read from `__req__` at every call, so this is as slow as a processor without state.
        A row with a dict that is None or empty, or that has no `__req__`, is processed with an empty history.
        """
        if not custom_param_list:
            return logits
        rows = []
        for row, params in enumerate(custom_param_list):
            req = (params or {}).get("__req__")
            history = History(req.origin_input_ids, req.output_ids) if req is not None else History()
            choice, own = read_phase(params or {})
            request = EditRequest(complete_params(type(self), own), history, logits.shape[-1], phase_tags=choice.tags)
            exempt_id = -1
            if choice.phase is not None:
                tracker = tracker_of(tags_for(choice, "", request.vocab_size), history)
                if tracker.phase != choice.phase:
                    continue
                request.history = History()
                request.history.follow(history, max(tracker.begin, history.prompt_length))
                exempt_id = tracker.exempt_id(history)
            self.start(request)
            row_edits = RowEdits()
            returned: object = self.edit(request, row_edits)
            if returned is not None:
                raise _returned_something(returned)
            if exempt_id >= 0:
                row_edits.exempt(exempt_id)
            rows.append((row, row_edits))
        apply_edits(Edits.pack(rows, logits.shape[-1]), logits)
        return logits


def _returned_something(returned: object) -> InvalidArgument:
    """The error of an `edit` that returned something, which would have no effect."""
    return InvalidArgument(
        f"edit returned {type(returned).__name__}: call methods of `edits`, such as edits.deny(ids), and return nothing"
    )
