"""The admission of a request: checks it, finds its processors and builds their state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from logitport.core.history import History
from logitport.errors import InvalidArgument, LimitExceeded
from logitport_builtins.contradictions import check_chain
from logitport_proto import common_pb2
from logitport_session.admissions.checked_calls import CheckedCall
from logitport_session.dialects import RequestContext, failures
from logitport_session.dialects.base import is_greedy
from logitport_session.dialects.edit_dialect import EditDialect
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.requests.principal_memory import begin_charge
from logitport_session.resources import load_time
from logitport_session.steps.columns import too_many_tokens
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from logitport.errors import LogitportError
    from logitport_proto import processing_pb2
    from logitport_session.admissions.checked_calls import CheckedCalls
    from logitport_session.dialects import Dialect
    from logitport_session.requests.principal_memory import PrincipalMemory
    from logitport_session.resources.session_limits import SessionLimits

    Load = Callable[[common_pb2.Processor, str, int], Dialect]

# In one request's chain. A step calls each for each row; no engine's user needs more.
MAX_PROCESSORS_PER_REQUEST = 64
# A request's JSON: its sampling parameters and its processors' parameters. They are kept as long as the request, and
# orjson parses a megabyte in a few milliseconds. Nothing else can run then.
MAX_PARAMS_BYTES = 1 << 20
_MAX_NAME_LENGTH = 256
_MAX_LABEL_LENGTH = 256  # longer than any valid name or digest
_INLINE = "(shipped inline)"
_ID_BYTES = 4  # of an id in a column
_NO_IDS = np.empty(0, np.int32)
# Longer parameters are not kept for the other requests of a frame.
_LARGE_PARAMS_BYTES = 1 << 16


class Admission:
    """A request that has passed the checks of the message itself. Its chain is built later: `load`, then `finish`.

    Args:
        previous: the same request before its history is replaced. Its names and digests keep the processors they were
            resolved to, even if these have been deleted since.
        device: where logits are processed that are not sent to workers.
        caller: identity of the party that the request belongs to, for processors that divide scarce work.

    Raises:
        StateLost: the previous request has state that cannot be rebuilt from its history.
        LogitportError: the message is invalid; see docs/protocol.md.
    """

    def __init__(
        self,
        addition: processing_pb2.SlottedRequest,
        engine: processing_pb2.OpenSession,
        previous: ActiveRequest | None = None,
        device: str = "cpu",
        caller: Hashable = None,
    ) -> None:
        self._pinned = previous.chain if previous is not None else []
        for entry in self._pinned:
            try:
                entry.dialect.check_rebuildable(entry.state)
            except BaseException as error:
                raise failures.of_processor(error, entry.label) from error
        message = addition.request
        request_id, self.tenant = message.request_id, message.tenant
        for field, name in (("request_id", request_id), ("tenant", self.tenant)):
            if len(name.encode()) > _MAX_NAME_LENGTH:
                raise InvalidArgument(f"{field} is longer than {_MAX_NAME_LENGTH} bytes")
        prompt = read_token_ids(message, "prompt", engine.vocab_size)
        output = read_token_ids(message, "output", engine.vocab_size)
        self._sampling_params = json_object(message.sampling_params, "sampling_params")
        self._context = RequestContext(
            request_id,
            History(prompt, output),
            self._sampling_params,
            engine.vocab_size,
            engine.tokenizer_id,
            tuple(engine.eos_token_ids),
            engine.max_requests,
            device,
            caller,
        )
        self._engine_runs_programs = engine.runs_programs and not addition.programs_on_server
        self.slot, self.generation = addition.slot, addition.generation
        self._message = message
        self._account: PrincipalMemory | None = None
        self._chain: list[ChainEntry] = []
        # Entries that `finish` starts, with their parameters.
        self._unstarted: list[tuple[ChainEntry, CheckedCall]] = []

    @property
    def chain_bytes(self) -> int:
        """Size of the message of its chain, with shipped processors."""
        return sum(call.ByteSize() for call in self._message.processors)

    def detach(self) -> None:
        """Copy the message of the chain: a part of a frame keeps the memory of the whole frame."""
        self._message = common_pb2.Request(processors=self._message.processors, on_error=self._message.on_error)

    def charge(self, account: PrincipalMemory) -> None:
        """Charge the memory of the history alone, until `load`. Raises LimitExceeded."""
        begin_charge(self._context.history, account)

    def drop(self) -> None:
        """Free the history and the states of a refused request."""
        self._chain.clear()
        self._unstarted.clear()
        self._context.history = History()

    def load(
        self,
        find: Load,
        seconds: float = math.inf,
        *,
        in_background: bool = False,
        shared: CheckedCalls | None = None,
        account: PrincipalMemory | None = None,
    ) -> None:
        """Find the processors, check their parameters, and build their state. May take long.

        Args:
            find: finds and loads a processor, for a tenant and a place in the chain.
            seconds: time limit for the whole chain, because the engine waits for all of it.
            in_background: whether steps of the session may run at the same time. The state of a processor of this
                process is then built by `finish`, because its instance serves these steps and is not thread-safe. A
                worker has a lock.
            shared: the checked calls of the frame, which other threads do not use.
            account: charged with the memory of the history and the states; None for no limit.

        Raises:
            LogitportError: a processor cannot be used, or refuses the parameters; see docs/protocol.md.
        """
        with load_time.limited(seconds):
            self._load(find, in_background=in_background, shared=shared, account=account)

    def _load(
        self, find: Load, *, in_background: bool, shared: CheckedCalls | None, account: PrincipalMemory | None
    ) -> None:
        checked: list[CheckedCall] = []
        if self._pinned or tracing.is_on():  # with tracing, each request has spans of its own
            shared = None
        for place, call in enumerate(self._message.processors):
            calls = shared if len(call.params) <= _LARGE_PARAMS_BYTES else None
            found = None if calls is None else calls.find(call, self.tenant, place)
            if found is None:
                found = self._check(call, place, find)
                if calls is not None:
                    calls.keep(call, self.tenant, place, found)
            checked.append(found)
        pairs = [(getattr(call.dialect, "processor", None), call.params) for call in checked]
        context = self._context
        check_chain(pairs, context.history, context.tokenizer_id, context.eos_token_ids)
        entries = [
            ChainEntry(call.dialect, None, call.label, only_denies=_only_denies(call.dialect, call.params))
            for call in checked
        ]
        if self._engine_runs_programs:
            _leave_programs_to_engine(entries)
        self._account = account
        if account is not None:
            sizes = [(entry.dialect, call.params_bytes) for entry, call in zip(entries, checked, strict=True)]
            phases = sum(isinstance(call.dialect, EditDialect) and "phase" in call.params for call in checked)
            begin_charge(self._context.history, account, sizes, phases)
        # States last: while a worker has one, classes are loaded and parameters are checked in a second process.
        for entry, found in zip(entries, checked, strict=True):
            try:
                load_time.check()
            except BaseException as error:
                raise _failure_of(error, entry.dialect, entry.label) from error
            if in_background and not entry.dialect.isolated:
                self._unstarted.append((entry, found))
            else:
                _start(entry, found, self._context)
            self._chain.append(entry)

    def _check(self, call: common_pb2.ProcessorCall, place: int, find: Load) -> CheckedCall:
        """Find a processor of the chain, and check its parameters. Raises LogitportError."""
        label, params_bytes = _label(call.processor), len(call.params)
        params = json_object(call.params, f"params of processor {place} ({label})")
        dialect = None
        with tracing.span("processor load", {"processor": label}) as span:
            try:
                load_time.check()
                if _is_pinned(self._pinned, place, label):
                    dialect = self._pinned[place].dialect.on_server
                else:
                    dialect = find(call.processor, self.tenant, place)
                span.set("processor", dialect.name)
                load_time.check()
                dialect.validate(params, self._sampling_params, self._context.caller)
            except BaseException as error:
                if dialect is None:
                    raise failures.of_processor(error, label) from error
                raise _failure_of(error, dialect, label) from error
        return CheckedCall(dialect, label, params, params_bytes)

    def finish(self) -> ActiveRequest:
        """Build the states that `load` left, and return the request. Runs between the steps of the session.

        Raises:
            LogitportError: a processor raises.
        """
        for entry, call in self._unstarted:
            _start(entry, call, self._context)
        return ActiveRequest(
            self.slot,
            self.generation,
            self._context.history,
            self._chain,
            skip=self._message.on_error == common_pb2.ON_ERROR_SKIP,
            greedy=is_greedy(self._sampling_params.get("temperature")),
            account=self._account,
        )


def check_limits(request: common_pb2.Request, limits: SessionLimits) -> None:
    """Check the tenant, and the limits on memory that a request needs. Raises InvalidArgument, LimitExceeded."""
    if limits.require_tenant and not request.tenant:
        raise InvalidArgument(
            "the request names no tenant, and this server requires one (--require-tenant): set Request.tenant; "
            "with an engine's hook, have a gateway set the header X-Logitport-Tenant, or set LOGITPORT_TENANT "
            "(docs/security.md, Tenants)"
        )
    length = len(request.prompt_token_ids) + len(request.output_token_ids)
    length += (len(request.prompt_ids) + len(request.output_ids)) // _ID_BYTES
    if length > limits.max_tokens_per_request:
        raise too_many_tokens(length, limits.max_tokens_per_request)
    if len(request.processors) > MAX_PROCESSORS_PER_REQUEST:
        raise LimitExceeded(
            f"{len(request.processors)} processors in one request; the server accepts "
            f"{MAX_PROCESSORS_PER_REQUEST}: chain fewer"
        )
    json_bytes = len(request.sampling_params) + sum([len(call.params) for call in request.processors])
    if json_bytes > MAX_PARAMS_BYTES:
        raise LimitExceeded(
            f"{json_bytes} bytes of parameters in one request; the server accepts {MAX_PARAMS_BYTES}: send less"
        )


def read_token_ids(
    request: common_pb2.Request, part: Literal["prompt", "output"], vocab_size: int
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Read the ids of the prompt or the output, int32[n], from the list or the column that holds them.

    Raises:
        InvalidArgument: both are set, or the column has no whole number of ids.
        InvalidArgument: an id is outside [0, vocab_size).
    """
    if part == "prompt":
        listed, column = request.prompt_token_ids, request.prompt_ids
    else:
        listed, column = request.output_token_ids, request.output_ids
    where = f"{part}_token_ids"
    if not column:
        return check_token_ids(listed, vocab_size, where) if listed else _NO_IDS
    if listed:
        raise InvalidArgument(f"{where} and {part}_ids are both set; send one of them")
    if len(column) % _ID_BYTES:
        raise InvalidArgument(f"{part}_ids has {len(column)} bytes; send {_ID_BYTES} for each id")
    return check_token_ids(np.frombuffer(column, "<i4"), vocab_size, where)


def check_token_ids(
    token_ids: Sequence[int] | np.ndarray[Any, np.dtype[np.int32]], vocab_size: int, where: str
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Convert ids to int32[n]. Raises InvalidArgument if one is outside [0, vocab_size)."""
    ids = np.asarray(token_ids, np.int32)
    if ids.size and ids.view(np.uint32).max() >= vocab_size:  # a negative id is above 2**31
        index = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise InvalidArgument(f"{where}[{index}] is {ids[index]}: token ids must lie in [0, {vocab_size})")
    return ids


def json_object(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object; empty text is {}. Raises InvalidArgument for any other text."""
    try:
        value = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"{where}: not JSON ({error}); send an object, such as {{}}") from error
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"{where}: must be a JSON object, not {type(value).__name__}; send an object, such as {{}}"
        )
    return value


def _start(entry: ChainEntry, call: CheckedCall, context: RequestContext) -> None:
    """Build the state of a chain's entry from the history. Raises LogitportError."""
    dialect = entry.dialect
    span = tracing.NO_SPAN
    if tracing.is_on():
        span = tracing.span("history replay", {"processor": dialect.name, "tokens": len(context.history)})
    with span:
        try:
            if call.state is None:
                entry.state = dialect.start(context, call.params)
            else:
                entry.state = dialect.start_like(call.state, context, call.params)
        except BaseException as error:
            raise _failure_of(error, dialect, entry.label) from error
    call.state = entry.state


def _only_denies(dialect: Dialect, params: Mapping[str, Any]) -> bool:
    return dialect.denies_without is not None and params.keys().isdisjoint(dialect.denies_without)


def _leave_programs_to_engine(chain: list[ChainEntry]) -> None:
    """Let the engine run the programs of a chain, if nothing else in it reads logits."""
    readers = [entry for entry in chain if entry.dialect.reads_logits]
    dialects = [dialect for entry in readers if (dialect := entry.dialect.for_engine()) is not None]
    if len(dialects) == len(readers):
        for entry, dialect in zip(readers, dialects, strict=True):
            entry.dialect = dialect


def _failure_of(error: BaseException, dialect: Dialect, label: str) -> LogitportError:
    name = dialect.name if label in (_INLINE, dialect.key) else label
    return failures.of_processor(error, name, shipped=dialect.shipped)


def _is_pinned(chain: list[ChainEntry], place: int, label: str) -> bool:
    """Whether the previous chain has a processor at this place with this name or digest."""
    return place < len(chain) and label != _INLINE and label in (chain[place].label, chain[place].dialect.key)


def _label(processor: common_pb2.Processor) -> str:
    by = processor.WhichOneof("by")
    return _INLINE if by == "payload" else getattr(processor, by)[:_MAX_LABEL_LENGTH] if by else "(none)"
