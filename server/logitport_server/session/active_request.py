"""A request in a session: its history, and its chain of processors with their state."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
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
from logitport_server.turns import Released, pause, pausing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from logitport_proto import processing_pb2

_MAX_NAME_LENGTH = 256
_MAX_LABEL_LENGTH = 256  # longer than any valid name or digest
_INLINE = "(shipped inline)"


@dataclass(eq=False, slots=True)
class ChainEntry:
    """One place in a request's chain: a processor, and its state for this request.

    Attributes:
        dialect: the processor.
        state: the dialect's state for this request.
        label: the name or digest by which the request named the processor.
        stale: whether the state misses ids of the history, because the processor failed at one of them.
    """

    dialect: Dialect
    state: Any
    label: str = ""
    stale: bool = False


class ActiveRequest:
    """An admitted request.

    Attributes:
        history: its tokens.
        crc: checksum of the history without drafts.
        chain: its processors, in the order in which they run.
        reads_logits: whether any of them reads logits.
        skip: whether the request continues without its processors after a failure.
        greedy: whether the engine samples the largest logit of its rows.
        failure: the error it failed with, or None.
    """

    __slots__ = (
        "_needs_check",
        "_token_callbacks",
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
        # Whether the last step left a failure or stale state, which the next step must resolve.
        self._needs_check = False
        callbacks = ((entry.dialect.token_callback(entry.state), entry) for entry in chain)
        self._token_callbacks = [(callback, entry) for callback, entry in callbacks if callback is not None]

    def synchronize(self, base_length: int, history_crc: int, new_token_ids: Sequence[int]) -> None:
        """Cut the history back to `base_length` if it is longer, check its checksum, and append the new ids.

        Raises:
            NeedSync: the history differs from the engine's.
            LogitportError: the error the request failed with before, or one that a processor raises now.
        """
        failure = None
        if self._needs_check or base_length != self.history.length:
            failure = self._restore(base_length)
        if self.crc != history_crc:
            raise NeedSync(f"slot {self.slot}: the first {base_length} ids differ between engine and server")
        if new_token_ids:
            self.crc = extend_crc(self.crc, new_token_ids)
            later = self._extend(new_token_ids)
            failure = failure or later
        if failure is not None:
            raise failure

    def fail(self, failure: LogitportError) -> None:
        """Mark the request as failed: in this step, and in later ones too unless `skip` is set."""
        # The error is raised again at every step. Each time its traceback would grow, and keep frames and their locals.
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None
        self.failure = failure
        self._needs_check = True

    def append(self, token_ids: Sequence[int]) -> None:
        """Append draft tokens to the history; `rewind` removes them.

        Raises:
            LogitportError: the first error of a processor, raised after all processors were called.
        """
        self.history.draft_tokens += len(token_ids)
        failure = self._extend(token_ids)
        if failure is not None:
            raise failure

    def rewind(self, length: int) -> None:
        """Cut the history back to `length` ids. Raises as `append`."""
        self.history.rewind(length)
        failure = self._update_states(self.chain)
        if failure is not None:
            raise failure

    def _restore(self, length: int) -> LogitportError | None:
        """Prepare for a step from this length: clear a failure if `skip` is set, and cut the history back.

        Returns:
            The first error of a processor.

        Raises:
            NeedSync, LogitportError: as `synchronize`.
        """
        if self.failure is not None:
            if not self.skip:
                raise self.failure
            self.failure = None
        own_length = self.history.length
        if length == own_length:
            failure = self._update_states([entry for entry in self.chain if entry.stale])
        elif self.history.prompt_length <= length < own_length:
            self.history.rewind(length)
            self.crc = self.history.crc()
            failure = self._update_states(self.chain)
        else:
            raise NeedSync(f"the engine's history has {length} ids, the server's {own_length}")
        self._needs_check = failure is not None
        return failure

    def _extend(self, token_ids: Sequence[int]) -> LogitportError | None:
        """Append ids to the history, and call the token callbacks. Returns the first error of a processor."""
        failure = None
        # The test saves a call for the usual step.
        for token_id in pausing(token_ids, len(token_ids)) if len(token_ids) > 1 else token_ids:
            self.history.append(token_id)
            for callback, entry in self._token_callbacks:
                if entry.stale:
                    continue
                try:
                    callback(token_id)
                except BaseException as error:  # noqa: BLE001 - a processor may raise anything
                    entry.stale = self._needs_check = True
                    failure = failure or failures.of_dialect(error, entry.dialect)
        return failure

    def _update_states(self, entries: Iterable[ChainEntry]) -> LogitportError | None:
        """Rewind states after the history was cut back; rebuild stale ones. Returns the first error of a processor."""
        failure = None
        for entry in entries:
            try:
                if entry.stale:
                    entry.dialect.rebuild(entry.state)
                else:
                    entry.dialect.rewind(entry.state)
                entry.stale = False
            except BaseException as error:  # noqa: BLE001 - as above
                entry.stale = True
                failure = failure or failures.of_dialect(error, entry.dialect)
            pause()
        return failure


def admit(
    addition: processing_pb2.SlottedRequest,
    engine: processing_pb2.OpenSession,
    host: Callable[[common_pb2.Processor, str, int], Dialect],
    previous: ActiveRequest | None = None,
    device: str = "cpu",
    seconds: float = math.inf,
    caller: Hashable = None,
) -> ActiveRequest:
    """Check a request, find its processors and build their state.

    Args:
        addition: the request and its slot.
        engine: the message that opened the session.
        host: finds a processor, for a tenant and a place in the chain.
        previous: the same request before its history is replaced. Its names and digests keep the processors they were
            resolved to, even if these have been deleted since.
        device: where logits are processed that are not sent to workers.
        seconds: time limit for loading the whole chain, because the engine waits for all of it.
        caller: identity of the party that the request belongs to, for processors that divide scarce work.

    Raises:
        StateLost: the previous request has state that cannot be rebuilt from its history.
        LogitportError: the request is invalid, or a processor cannot be used; see docs/protocol.md.
    """
    pinned = previous.chain if previous is not None else []
    for entry in pinned:
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
    deadline = time.monotonic() + seconds

    def check_deadline() -> None:
        if time.monotonic() > deadline:
            raise ProcessorTimedOut(
                f"the request's chain was not loaded within {seconds:g} s (--load-timeout-seconds): chain fewer "
                "processors, or faster ones"
            )

    chain = []
    for place, call in enumerate(message.processors):
        label = _label(call.processor)
        params = json_object(call.params, f"params of processor {place} ({label})")
        dialect = None
        try:
            check_deadline()
            if _is_pinned(pinned, place, label):
                dialect = pinned[place].dialect
            else:
                with Released():  # it may wait for a worker or for the store
                    dialect = host(call.processor, message.tenant, place)
            check_deadline()
            with Released() if _may_wait(dialect) else nullcontext():
                dialect.validate(params, sampling_params, caller)
                check_deadline()
                chain.append(ChainEntry(dialect, dialect.start(context, params), label))
            pause()
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
    """Convert ids to int32[n]. Raises InvalidTokenId if one is outside [0, vocab_size)."""
    ids = np.asarray(token_ids, np.int32)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        index = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise InvalidTokenId(f"{where}[{index}] is {ids[index]}: token ids must lie in [0, {vocab_size})")
    return ids


def json_object(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object; empty text is {}. Raises InvalidParams for any other text."""
    try:
        value = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidParams(f"{where}: not JSON ({error}); send an object, such as {{}}") from error
    if not isinstance(value, dict):
        raise InvalidParams(f"{where}: must be a JSON object, not {type(value).__name__}; send an object, such as {{}}")
    return value


def _may_wait(dialect: Dialect) -> bool:
    """Whether methods of the dialect may wait, or run for long."""
    return dialect.isolated or dialect.shipped or dialect.takes_long


def _is_pinned(chain: list[ChainEntry], place: int, label: str) -> bool:
    """Whether the previous chain has a processor at this place with this name or digest."""
    return place < len(chain) and label != _INLINE and label in (chain[place].label, chain[place].dialect.key)


def _label(processor: common_pb2.Processor) -> str:
    by = processor.WhichOneof("by")
    return _INLINE if by == "payload" else getattr(processor, by)[:_MAX_LABEL_LENGTH] if by else "(none)"
