"""One request while a session holds it: its history, and the chain of processors with their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from logitport.errors import InvalidArgument, InvalidParams, InvalidTokenId, LogitportError, NeedSync
from logitport.history import History, extend_crc
from logitport_proto import common_pb2
from logitport_server import failures
from logitport_server.dialects import Dialect, RequestContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_proto import processing_pb2
    from logitport_server.columns import RequestStep

_LONGEST_REQUEST_ID = 256


@dataclass(frozen=True, slots=True)
class Link:
    """One place in a request's chain: a processor, and its state for this request."""

    dialect: Dialect
    state: Any


class ActiveRequest:
    """A request that was admitted.

    Attributes:
        history: its tokens.
        crc: checksum of the history, drafts left out.
        chain: its processors, in the order in which they run.
        reads_logits: whether any of them does.
        skip: whether it asked to go on without its processors where they fail.
        failure: why it failed; None as long as it has not.
    """

    __slots__ = (
        "_advancers",
        "_stale",
        "chain",
        "crc",
        "failure",
        "generation",
        "history",
        "reads_logits",
        "skip",
        "slot",
    )

    def __init__(self, slot: int, generation: int, history: History, chain: list[Link], *, skip: bool) -> None:
        self.slot = slot
        self.generation = generation
        self.history = history
        self.crc = history.crc()
        self.chain = chain
        self.reads_logits = any(link.dialect.reads_logits for link in chain)
        self.skip = skip
        self.failure: LogitportError | None = None
        advancers = ((link.dialect.advancer(link.state), link.dialect.name) for link in chain)
        self._advancers = [(advance, name) for advance, name in advancers if advance is not None]
        # Whether the state of its processors is behind its history.
        self._stale = False

    def synchronise(self, told: RequestStep) -> None:
        """Make the history what the engine says it is.

        Raises:
            NeedSync: that cannot be: the engine's history is another one.
            LogitportError: why the request has failed before, or what a processor raises now.
        """
        if self.failure is not None:
            if not self.skip:
                raise self.failure
            self.failure = None
        length = len(self.history)
        if told.base_length != length:
            if not self.history.prompt_length <= told.base_length < length:
                raise NeedSync(
                    f"slot {told.slot}: the engine's history has {told.base_length} ids, the server's {length}"
                )
            self.rewind(told.base_length)
            self.crc = self.history.crc()
        if self._stale:
            self.rebuild()
        if self.crc != told.history_crc:
            raise NeedSync(f"slot {told.slot}: the first {told.base_length} ids differ between engine and server")
        if told.new_token_ids:
            self.crc = extend_crc(self.crc, told.new_token_ids)
            self.append(told.new_token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Ids, drafts too, join the history, and every processor is told. Raises what the processors raise."""
        for token_id in token_ids:
            self.history.append(token_id)
            for advance, name in self._advancers:
                try:
                    advance(token_id)
                except BaseException as error:
                    self._stale = True
                    raise failures.of_processor(error, name) from error

    def rewind(self, length: int) -> None:
        """Cut the history back to `length` ids. Raises what the processors raise."""
        self.history.rewind(length)
        self.rebuild()

    def rebuild(self) -> None:
        """Bring the state of every processor in line with the history. Raises what the processors raise."""
        self._stale = True
        for link in self.chain:
            try:
                link.dialect.rewind(link.state)
            except BaseException as error:
                raise failures.of_processor(error, link.dialect.name) from error
        self._stale = False


def admit(
    asked: processing_pb2.SlottedRequest, vocab_size: int, host: Callable[[common_pb2.Processor], Dialect]
) -> ActiveRequest:
    """Check a request, find its processors and build their state.

    Raises:
        LogitportError: anything that is wrong with this request; see docs/protocol.md.
    """
    message = asked.request
    if len(message.request_id.encode()) > _LONGEST_REQUEST_ID:
        raise InvalidArgument(f"request_id is longer than {_LONGEST_REQUEST_ID} bytes")
    prompt = check_token_ids(message.prompt_token_ids, vocab_size, "prompt_token_ids")
    output = check_token_ids(message.output_token_ids, vocab_size, "output_token_ids")
    history = History(prompt, output)
    context = RequestContext(
        message.request_id, history, json_object(message.sampling_params, "sampling_params"), vocab_size
    )
    chain = []
    for place, call in enumerate(message.processors):
        label = _label(call.processor)
        params = json_object(call.params, f"params of processor {place} ({label})")
        try:
            dialect = host(call.processor)
            dialect.validate(params)
            chain.append(Link(dialect, dialect.start(context, params)))
        except BaseException as error:
            raise failures.of_processor(error, label) from error
    skip = message.on_error == common_pb2.ON_ERROR_SKIP
    return ActiveRequest(asked.slot, asked.generation, history, chain, skip=skip)


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


def _label(processor: common_pb2.Processor) -> str:
    by = processor.WhichOneof("by")
    return "(shipped inline)" if by == "serialized" else getattr(processor, by) if by else "(none)"
