"""One request while a session holds it: its history, and the chain of processors with their state."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from logitport.core.history import History, extend_crc
from logitport.errors import (
    InvalidArgument,
    InvalidParams,
    InvalidTokenId,
    LogitportError,
    NeedSync,
    ProcessorTimedOut,
)
from logitport_proto import common_pb2
from logitport_server.dialects import Dialect, RequestContext, failures
from logitport_server.dialects.base import is_greedy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from logitport_proto import processing_pb2

_MAX_NAME_LENGTH = 256
_MAX_LABEL_LENGTH = 256  # longer than any name or digest there is
_INLINE = "(shipped inline)"


@dataclass(eq=False, slots=True)
class ChainEntry:
    """One place in a request's chain: a processor, and its state for this request.

    Attributes:
        dialect: the processor.
        state: what the dialect keeps.
        label: how the request named the processor.
        behind: whether the state is behind the history, for the processor failed as it was told of an id.
    """

    dialect: Dialect
    state: Any
    label: str = ""
    stale: bool = False


class ActiveRequest:
    """A request that was admitted.

    Attributes:
        history: its tokens.
        crc: checksum of the history, drafts left out.
        chain: its processors, in the order in which they run.
        reads_logits: whether any of them does.
        skip: whether it asked to go on without its processors where they fail.
        greedy: whether the engine samples the largest logit of its rows.
        failure: why it failed; None as long as it has not.
    """

    __slots__ = (
        "_advancers",
        "_needs_check",
        "chain",
        "crc",
        "failure",
        "generation",
        "greedy",
        "history",
        "reads_logits",
        "skip",
        "slot",
    )

    def __init__(
        self,
        slot: int,
        generation: int,
        history: History,
        chain: list[ChainEntry],
        *,
        skip: bool,
        greedy: bool = False,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.history = history
        self.crc = history.crc()
        self.chain = chain
        self.reads_logits = any(entry.dialect.reads_logits for entry in chain)
        self.skip = skip
        self.greedy = greedy
        self.failure: LogitportError | None = None
        # Whether the next step must look at what this one left: a failure, or state that is behind.
        self._needs_check = False
        advancers = ((entry.dialect.token_callback(entry.state), entry) for entry in chain)
        self._advancers = [(advance, entry) for advance, entry in advancers if advance is not None]

    def synchronise(self, base_length: int, history_crc: int, new_token_ids: Sequence[int]) -> None:
        """Make the history what the engine says it is: so long, with this checksum, and then these ids.

        Raises:
            NeedSync: that cannot be: the engine's history is another one.
            LogitportError: why the request has failed before, or what a processor raises now.
        """
        failure = None
        if self._needs_check or base_length != self.history.length:
            failure = self._return_to(base_length)
        if self.crc != history_crc:
            raise NeedSync(f"slot {self.slot}: the first {base_length} ids differ between engine and server")
        if new_token_ids:
            self.crc = extend_crc(self.crc, new_token_ids)
            later = self._extend(new_token_ids)
            failure = failure or later
        if failure is not None:
            raise failure

    def fail(self, failure: LogitportError) -> None:
        """The request goes no further in this step; nor in later ones, unless it asked to be skipped."""
        # It is raised again at every step: the frames that it came through, and what is in them, would pile up.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        self.failure = failure
        self._needs_check = True

    def append(self, token_ids: Sequence[int]) -> None:
        """Draft tokens join the history, until `rewind`. Raises what a processor raises, once all are told."""
        self.history.draft_tokens += len(token_ids)
        failure = self._extend(token_ids)
        if failure is not None:
            raise failure

    def rewind(self, length: int) -> None:
        """Cut the history back to `length` ids. Raises as `append`."""
        self.history.rewind(length)
        failure = self._follow(self.chain)
        if failure is not None:
            raise failure

    def _return_to(self, length: int) -> LogitportError | None:
        """Be ready for a step from this length: forget a failure, if that is allowed, and cut the history back.

        Returns:
            What the first processor raised that raises.

        Raises:
            NeedSync, LogitportError: as `synchronise`.
        """
        if self.failure is not None:
            if not self.skip:
                raise self.failure
            self.failure = None
        own_length = self.history.length
        if length == own_length:
            failure = self._follow([entry for entry in self.chain if entry.stale])
        elif self.history.prompt_length <= length < own_length:
            self.history.rewind(length)
            self.crc = self.history.crc()
            failure = self._follow(self.chain)
        else:
            raise NeedSync(f"the engine's history has {length} ids, the server's {own_length}")
        self._needs_check = failure is not None
        return failure

    def _extend(self, token_ids: Sequence[int]) -> LogitportError | None:
        """Ids join the history, and every processor is told; what the first one raised that raises."""
        failure = None
        for token_id in token_ids:
            self.history.append(token_id)
            for advance, entry in self._advancers:
                if entry.stale:
                    continue
                try:
                    advance(token_id)
                except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
                    entry.stale = self._needs_check = True
                    failure = failure or failures.of_dialect(error, entry.dialect)
        return failure

    def _follow(self, links: Iterable[ChainEntry]) -> LogitportError | None:
        """Bring state in line with a history that was cut back, or that it is behind; what the first one raised."""
        failure = None
        for entry in links:
            try:
                if entry.stale:
                    entry.dialect.rebuild(entry.state)
                else:
                    entry.dialect.rewind(entry.state)
                entry.stale = False
            except BaseException as error:  # noqa: BLE001 - as above
                entry.stale = True
                failure = failure or failures.of_dialect(error, entry.dialect)
        return failure


def admit(
    addition: processing_pb2.SlottedRequest,
    engine: processing_pb2.OpenSession,
    host: Callable[[common_pb2.Processor, str, int], Dialect],
    occupant: ActiveRequest | None = None,
    device: str = "cpu",
    seconds: float = math.inf,
    caller: Hashable = None,
) -> ActiveRequest:
    """Check a request, find its processors and build their state.

    Args:
        addition: the request and its place.
        engine: what the engine said of itself.
        host: finds a processor, for a tenant and a place in the chain.
        occupant: the same request as it was, if only its history is replaced: what its names and digests stood for
            then they still do, even if nothing is registered under them any more.
        device: where logits are processed that are not sent to workers.
        seconds: when so much has passed, no more of its chain is loaded: the engine waits for the whole chain.
        caller: identity of the party that the request belongs to, for processors that divide scarce work.

    Raises:
        StateLost: the occupant has state that its history does not give back.
        LogitportError: anything that is wrong with this request; see docs/protocol.md.
    """
    before = occupant.chain if occupant is not None else []
    for entry in before:
        try:
            entry.dialect.check_rebuildable(entry.state)
        except BaseException as error:
            raise failures.of_processor(error, entry.label) from error
    message = addition.request
    for field in ("request_id", "tenant"):
        if len(getattr(message, field).encode()) > _MAX_NAME_LENGTH:
            raise InvalidArgument(f"{field} is longer than {_MAX_NAME_LENGTH} bytes")
    prompt = check_token_ids(message.prompt_token_ids, engine.vocab_size, "prompt_token_ids")
    output = check_token_ids(message.output_token_ids, engine.vocab_size, "output_token_ids")
    history = History(prompt, output)
    sampling_params = json_object(message.sampling_params, "sampling_params")
    context = RequestContext(
        message.request_id,
        history,
        sampling_params,
        engine.vocab_size,
        engine.tokenizer_id,
        tuple(engine.eos_token_ids),
        engine.max_requests,
        device,
        caller,
    )
    until = time.monotonic() + seconds

    def check_time() -> None:
        if time.monotonic() > until:
            raise ProcessorTimedOut(
                f"its chain was not loaded within {seconds:g} s (--load-timeout-seconds): chain fewer processors, or "
                "quicker ones"
            )

    chain = []
    for place, call in enumerate(message.processors):
        label = _label(call.processor)
        params = json_object(call.params, f"params of processor {place} ({label})")
        dialect = None
        try:
            check_time()
            if _pinned(before, place, label):
                dialect = before[place].dialect
            else:
                dialect = host(call.processor, message.tenant, place)
            check_time()
            dialect.validate(params, sampling_params, caller)
            check_time()
            chain.append(ChainEntry(dialect, dialect.start(context, params), label))
        except BaseException as error:
            if dialect is None:
                raise failures.of_processor(error, label) from error
            name = dialect.name if label in (_INLINE, dialect.key) else label
            raise failures.of_processor(error, name, shipped=dialect.shipped) from error
    skip = message.on_error == common_pb2.ON_ERROR_SKIP
    return ActiveRequest(
        addition.slot,
        addition.generation,
        history,
        chain,
        skip=skip,
        greedy=is_greedy(sampling_params.get("temperature")),
    )


def check_token_ids(token_ids: Sequence[int], vocab_size: int, where: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The ids as int32[n]. Raises InvalidTokenId for one outside [0, vocab_size)."""
    ids = np.asarray(token_ids, np.int32)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        at = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise InvalidTokenId(f"{where}[{at}] is {ids[at]}: token ids must lie in [0, {vocab_size})")
    return ids


def json_object(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object from its text; nothing is {}. Raises InvalidParams for anything else."""
    try:
        value = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidParams(f"{where}: not JSON ({error}); send an object, such as {{}}") from error
    if not isinstance(value, dict):
        raise InvalidParams(
            f"{where}: a JSON object is wanted, not {type(value).__name__}; send an object, such as {{}}"
        )
    return value


def _pinned(chain: list[ChainEntry], place: int, label: str) -> bool:
    """Whether the processor at this place was admitted under this name, or is the one of this digest."""
    return place < len(chain) and label != _INLINE and label in (chain[place].label, chain[place].dialect.key)


def _label(processor: common_pb2.Processor) -> str:
    by = processor.WhichOneof("by")
    return _INLINE if by == "payload" else getattr(processor, by)[:_MAX_LABEL_LENGTH] if by else "(none)"
