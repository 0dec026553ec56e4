"""A request that a session holds, and the programs of its chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Union

import orjson

from logitport import payload
from logitport.errors import LogitportError
from logitport.report import ReportedProcessor
from logitport.servers import trace_context
from logitport.session.report_log import ReportLog
from logitport.shipping.request import checked, set_history
from logitport_programs.request_tokens import RequestTokens
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from logitport.report import Report
    from logitport.shipping.request import Request
    from logitport_programs.parameters import Checked
    from logitport_programs.verifier import Verified
    from logitport_proto import processing_pb2

_ADMISSION = (
    *("reads_logits", "sends_logits", "follows_from_history", "only_denies"),
    *("processors", "programs", "programs_on_server"),
)


class ProgramCall(NamedTuple):
    """A program in the chain of a request.

    Attributes:
        verified: the program.
        values: the value of each of its parameters, checked.
        milliseconds: the longest time that the program takes for a row here.
        processor: the processor's key: a built-in's name, or the digest.
    """

    verified: Verified
    values: tuple[Checked, ...]
    milliseconds: float
    processor: str


class Handle:
    """A request that a session holds; compared by identity.

    Attributes:
        request_id: the request's.
        message: the request, without its ids. Do not write to it.
        reads_logits: whether its chain reads logits: its steps end with `PendingStep.apply`, on the logits.
        sends_logits: whether they are sent to the server at each step.
        processors: the key of each processor of its chain, as `AdmittedChain.processors`.
        names: the registered name under which each was requested, "" for none.
        programs: the programs of its chain that the engine runs, in their order.
        programs_on_server: whether the server runs its programs, although this process runs others.
        follows_from_history: whether the state of its processors follows from the history, even if they read logits.
        only_denies: whether each of its processors declares that it only denies ids.
        skips: whether its rows stay unchanged if a processor fails.
        history: its tokens, including the new ids of every step.
        begins_at: length of its output when it was added.
        tokens: counts the ids of the history, for programs.
        processed: whether a processor has received logits of it, and state with them.
        removed: whether the session has dropped it.
        trace: the trace that it was added in, as headers; see `trace_context`.
        log: its events and failures; None before the first one.
    """

    __slots__ = (
        *("follows_from_history", "generation", "history", "message", "names", "processed", "processors", "programs"),
        *("programs_on_server", "reads_logits", "removed", "request_id", "sends_logits", "skips", "slot", "tokens"),
        *("_described", "begins_at", "log", "only_denies", "trace"),
    )

    def __init__(self, slot: int, generation: int, request: Request) -> None:
        self.slot = slot
        self.generation = generation
        # A copy made at admission, so that later changes to the engine's objects have no effect.
        self.message = checked(request).to_proto_without_history()
        self.request_id = self.message.request_id
        self.history = request.history()
        self.begins_at = self.history.length - self.history.prompt_length
        self.tokens = RequestTokens(self.history)
        self.processors: tuple[str, ...] = ()
        self.names = tuple(call.processor.name for call in self.message.processors)
        self.programs: tuple[ProgramCall, ...] = ()
        self.programs_on_server = False
        self.follows_from_history = self.only_denies = False
        self.skips = self.message.on_error == common_pb2.ON_ERROR_SKIP
        self.reads_logits = False
        self.sends_logits = False
        self.processed = False
        self.removed = False
        self.trace = trace_context.headers()
        self.log: ReportLog | None = None
        self._described: tuple[tuple[str, ...], list[tuple[str, ReportedProcessor]]] = ((), [])

    @property
    def params(self) -> list[bytes]:
        """The parameters of each processor of the chain, as JSON."""
        return [call.params for call in self.message.processors]

    def admitted(self, chain: processing_pb2.AdmittedChain, *, reads_logits: bool) -> None:
        """Record what a server has reported of the request when it admitted it, the first time or again.

        Raises:
            LogitportError: the chain has another number of processors.
        """
        processors = chain.processors
        if len(processors) != len(self.message.processors):
            raise LogitportError(
                f"the server admitted {len(processors)} processors of the {len(self.message.processors)} of request "
                f"{self.request_id!r}; close the session"
            )
        self.reads_logits = self.sends_logits = reads_logits
        self.follows_from_history = chain.follows_from_history
        self.only_denies = chain.only_denies
        self.processors = tuple(processors)
        for call, digest in zip(self.message.processors, processors, strict=True):
            if call.processor.WhichOneof("by") == "name":  # a name may be bound to another digest later
                call.processor.digest = digest

    @property
    def admission(self) -> tuple[Any, ...]:
        """Reports of servers about the request, and the choice of the side that runs its programs. Can be set."""
        return tuple(getattr(self, name) for name in _ADMISSION)

    @admission.setter
    def admission(self, admission: tuple[Any, ...]) -> None:
        for name, value in zip(_ADMISSION, admission, strict=True):
            setattr(self, name, value)

    def digests(self) -> list[str]:
        """Digests of the processors in its chain that are named by digest."""
        return [call.processor.digest for call in self.message.processors if call.processor.digest]

    def write(self, message: common_pb2.Request) -> None:
        """Write the request into a message, with the present history."""
        message.CopyFrom(self.message)
        set_history(message, self.history)

    def rewind(self, length: int) -> None:
        """Cut the history back to `length` ids. Raises InvalidArgument as `History.rewind`."""
        self.history.rewind(length)
        self.tokens.rewound()
        if self.log is not None:
            self.log.keep_before(length - self.history.prompt_length, self.history.output_token_ids)

    @property
    def report(self) -> Report:
        """What its chain has done so far. Kept after the request was removed."""
        history, log = self.history, self.log or ReportLog()
        return log.report(self.described_chain, history.rows_applied, history.length - history.prompt_length)

    @property
    def described_chain(self) -> list[tuple[str, ReportedProcessor]]:
        """The key of each processor of the chain, and its description with its parameters."""
        if self._described[0] != self.processors:  # once an admission: parameters and payloads may be large
            described = [
                (key, _described(call.processor, key, name)._replace(params=orjson.loads(call.params)))
                for call, key, name in zip(self.message.processors, self.processors, self.names, strict=False)
            ]
            self._described = self.processors, described
        return self._described[1]

    def continue_report(self, earlier: Handle) -> None:
        """Let the report include that of an earlier handle of the same request."""
        own, self.log = self.log, earlier.log or ReportLog()
        self.log.keep_before(self.begins_at, self.history.output_token_ids)  # the rest is computed again
        self.log.rows_before += earlier.history.rows_applied
        if own is not None:
            self.log.extend(own)

    def reporting(self) -> ReportLog:
        """Return the log, which is made at the first call."""
        if self.log is None:
            self.log = ReportLog()
        return self.log

    def __repr__(self) -> str:
        return f"<Handle {self.request_id!r} slot {self.slot} generation {self.generation}>"


def _described(processor: common_pb2.Processor, key: str, name: str) -> ReportedProcessor:
    by = processor.WhichOneof("by")
    if by == "builtin":
        return ReportedProcessor(processor.builtin, "")
    if not name and by == "payload":  # reading it takes as long as it is large
        name = payload.unwrap(processor.payload).class_name
    return ReportedProcessor(name or key, key)


# A handle, or a handle and a draft offset, as in `Session.step`.
RowLike = Union[Handle, "tuple[Handle, int]"]
