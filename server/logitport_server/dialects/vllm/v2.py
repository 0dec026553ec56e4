"""The dialect of vLLM's revised model runner (V2): one instance for all requests, each of which has a slot.

    add_request(req_idx, sampling_params) -> bool    a request now owns the slot
    apply_staged_writes()                            once a step
    apply(logits, ctx)                               all rows of the step, including those of draft tokens

And the form that was proposed first, recognized by an `apply` that takes only logits:

    add_request(index, sampling_params[, prompt_length]), remove_request(index)
    update_state(index_mapping, token_ids, seq_lens), apply(logits)

After its history was cut back, or its instance was replaced, a request is added again with its current history,
as the model runner does with a request that was preempted.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from logitport import dialects
from logitport.core.history import History
from logitport.errors import LoadFailed
from logitport_server.dialects.results import check_result
from logitport_server.dialects.vllm import objects
from logitport_server.dialects.vllm.base import VllmDialect, VllmRequest
from logitport_server.dialects.vllm.request_slots import RequestSlots
from logitport_server.dialects.vllm.rows import arrange
from logitport_server.dialects.vllm.v2_forms import ProposedV2, ReleasedV2
from logitport_server.stubs.vllm.config import VllmConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logitport_server.dialects.base import RequestContext
    from logitport_server.dialects.vllm.request_slots import Seat
    from logitport_server.dialects.vllm.v2_forms import Form

# Initial capacity: requests, and ids per request. Few sessions use their maximum of requests. An instance that needs
# more of either is replaced by one with more capacity.
_INITIAL_SLOTS = 256
_INITIAL_LENGTH = 1 << 15


@dataclass(eq=False, slots=True)
class _Request(VllmRequest):
    """A request with tokens that a processor reads from its slot; the two lists of ids are empty.

    Attributes:
        seat: the request's slot; None if it has none yet, or must be added again.
        declined: whether `add_request` returned False: the processor does not change the request's logits.
    """

    seat: Seat | None = None
    declined: bool = False


class VllmV2Dialect(VllmDialect):
    """Calls a processor with logits and a context of slots; it returns logits."""

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        author = dialects.author_of(processor)
        if isinstance(processor, author):
            raise LoadFailed(
                f"an instance of {author.__qualname__} was shipped, but it is bound to the slots of one engine; ship "
                "the class"
            )
        self._form_of = ReleasedV2 if _takes_context(author) else ProposedV2
        objects.check_constructor(processor, self._form_of.constructed_with)
        self.takes_drafts = self._form_of.takes_drafts
        self._form: Form | None = None
        self._room = (0, _INITIAL_LENGTH)
        self._context: RequestContext | None = None

    def start(self, context: RequestContext, params: dict[str, Any]) -> _Request:
        if self._context is None:
            self._context = replace(context, history=History())  # not the request's: it would stay alive
            self._room = (min(context.max_requests, _INITIAL_SLOTS), _INITIAL_LENGTH)
        if self._form is None:
            self._form = self._make_form(*self._room)
        made = objects.sampling_params(context.sampling_params, params, context.eos_token_ids)
        self._check(made)  # again, because validate_params may change this object and vLLM keeps such changes
        return _Request(made, [], [], context.history)

    def token_callback(self, state: VllmRequest) -> Callable[[int], object] | None:  # noqa: ARG002 - each call reads the new ids itself
        return None

    def rewind(self, state: VllmRequest) -> None:
        assert isinstance(state, _Request)  # noqa: S101 - `start` creates no other type
        if state.seat is not None and state.history.length < state.seat.written:
            state.seat = None

    def rebuild(self, state: VllmRequest) -> None:
        assert isinstance(state, _Request)  # noqa: S101 - as above
        state.seat = None

    def _process(self, states: Sequence[Any], logits: torch.Tensor) -> torch.Tensor:
        try:
            requests = dict.fromkeys(states)
            form = self._with_room(requests)
            failed = self._seat(form, requests)
            if failed:
                self.failed = {place: failed[state] for place, state in enumerate(states) if state in failed}
                requests = {request: None for request in requests if request not in failed}
            form.slots.flush([request.seat for request in requests])
            form.prepare()
            if all(request.declined for request in requests):
                return logits
            rows = arrange(states, self.drafts, failed)
            in_order = rows.places == list(range(len(states))) and logits.is_contiguous()
            selected = logits if in_order else logits[rows.places]
            result = form.apply(selected, rows)
            check_result(result, selected.shape, self.name)
        except BaseException:
            self._form = None  # its state may be wrong after an error
            raise
        if in_order:
            return result
        kept = [at for at in range(len(rows.places)) if at not in rows.missing]
        logits[[rows.places[at] for at in kept]] = result[kept].to(logits)
        return logits

    def _with_room(self, requests: Iterable[_Request]) -> Form:
        """Return the instance, or a new one with room for these requests."""
        count, longest = self._room
        form = self._form
        if form is not None:
            form.remove_vacated()
        new = sum(not _has_slot(request, form) for request in requests)
        taken = 0 if form is None else count - form.slots.free
        needed = max(request.history.length for request in requests)
        while count < taken + new:
            count *= 2
        while longest < needed:
            longest *= 2
        if form is None or (count, longest) != self._room:
            self._room = count, longest
            self._form = form = self._make_form(count, longest)
        return form

    def _seat(self, form: Form, requests: Iterable[_Request]) -> dict[_Request, BaseException]:
        """Give a slot to each request that has none. Returns the processor's exceptions, by request."""
        failed: dict[_Request, BaseException] = {}
        for request in requests:
            if _has_slot(request, form):
                continue
            seat = form.slots.seat(request.history)
            try:
                request.declined = not form.add(seat.slot, request.sampling_params, request.history.prompt_length)
                request.seat = seat
            except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
                failed[request] = error
                seat.leave()
        return failed

    def _make_form(self, count: int, longest: int) -> Form:
        """Create an instance of the processor. Raises LoadFailed."""
        context = self._context
        assert context is not None  # noqa: S101 - `start` has set it
        device = torch.device(context.device)
        slots = RequestSlots(count, longest, device if self.takes_drafts else torch.device("cpu"))
        config = VllmConfig(context.vocab_size, count, context.tokenizer_id, context.eos_token_ids)
        config.model_config.max_model_len = longest
        form = self._form_of(self._source, config, slots, context.vocab_size, device)
        self.processor, self.argmax_invariant = form.processor, form.argmax_invariant
        return form


def _has_slot(request: _Request, form: Form | None) -> bool:
    return form is not None and request.seat is not None and request.seat.slots is form.slots


def _takes_context(author: Any) -> bool:
    """Whether `apply` takes a context as well as the logits."""
    try:
        inspect.signature(author.apply).bind("self", "logits", "ctx")
    except TypeError:
        return False
    except ValueError:  # written in C: the signature is unknown
        pass
    return True
