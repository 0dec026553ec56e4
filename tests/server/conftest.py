"""Parts of a server, in this process."""

from __future__ import annotations

import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    Edits,
    History,
    InvalidArgument,
    NotFound,
    Request,
    RowEdits,
)
from logitport.core import tensors
from logitport.errors import LogitportError, from_proto
from logitport.ops import apply_edits
from logitport_programs.verifier import Verified
from logitport_proto import common_pb2, processing_pb2
from logitport_server.config import ServerConfig
from logitport_server.config.sources import VARIABLES
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_session.dialects import Dialect, RequestContext, make_dialect
from logitport_session.engine_session import session_admissions, session_steps
from logitport_session.engine_session.engine_session import EngineSession
from logitport_session.processor_sources.source import Source
from logitport_session.requests.active_request import ActiveRequest, ChainEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from logitport_session.admissions.pending_admissions import Submit
    from logitport_session.trust.principals import Principal


@dataclass
class Admission:
    """Builds requests from instances of processors. Requests with the same instance share its dialect.

    Attributes:
        vocab_size: width of the logits.
    """

    vocab_size: int
    _dialects: dict[int, Dialect] = field(default_factory=dict)
    _slots: int = 0

    def __call__(
        self,
        *chain: tuple[CustomLogitProcessor, dict[str, Any]],
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        skip: bool = False,
    ) -> ActiveRequest:
        history = History(prompt, output)
        context = RequestContext(f"r{self._slots}", history, {}, self.vocab_size)
        entries = []
        for processor, params in chain:
            dialect = self._dialects.setdefault(
                id(processor), make_dialect(processor, type(processor).__name__, shipped=True)
            )
            entries.append(ChainEntry(dialect, dialect.start(context, params)))
        self._slots += 1
        return ActiveRequest(self._slots - 1, 0, history, entries, skip=skip)


class DenyHistory(EditProcessor):
    """Denies every id of its request's history. Keeps a copy of the history, and asserts that they are equal."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        if params.get("refuse"):
            raise InvalidArgument("refuse is set")

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        if token_id == request.params.get("bomb"):
            raise ValueError("boom")
        request.state.append(token_id)

    def rewind(self, request: EditRequest) -> None:
        del request.state[len(request.history) :]

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert request.state == request.history.token_ids.tolist()
        edits.deny(request.state)


class AddOutputs(CustomLogitProcessor):
    """Adds the number of outputs to all logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.add_(torch.tensor([[float(len(params["__req__"].output_ids))] for params in custom_param_list]))


class CountCalls(CustomLogitProcessor):
    """Adds the number of calls, which it counts in the request's parameters."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list):
            params["calls"] = params.get("calls", 0) + 1
            logits[row] += params["calls"]
        return logits


class Toys:
    """A registry of toy processors by the name of their class. A test can bind further names, also to programs."""

    has_only_builtins = False

    def __init__(self, *toys: type) -> None:
        self.toys: dict[str, Any] = {toy.__name__: toy for toy in toys}
        self.installed = self

    def is_fast(self, builtin: str) -> bool:
        return builtin not in self.toys or not getattr(self.toys[builtin], "takes_long", True)

    def resolve(self, processor: common_pb2.Processor, principal: Principal, tenant: str) -> Source:
        name = getattr(processor, processor.WhichOneof("by"))
        if name not in self.toys:
            raise NotFound(f"no {name}")
        toy = self.toys[name]
        if isinstance(toy, Verified):
            return Source(toy.program.digest, program=toy)
        return Source(toy.__name__, installed=toy)


class Submitted:
    """Background work that runs when the test calls `run`. An instance is a `Submit`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Callable[[], None], Future[None]]] = []

    def __call__(self, principal: str, work: Callable[[], None], /) -> Future[None]:
        future: Future[None] = Future()
        self.calls.append((principal, work, future))
        return future

    def __len__(self) -> int:
        return len(self._waiting())

    def run(self, which: int = 0) -> None:
        """Run one of the calls that were neither begun nor cancelled."""
        begin, end = self.begin(which)
        begin()
        end()

    def begin(self, which: int = 0) -> tuple[Callable[[], None], Callable[[], None]]:
        """Begin one of the calls: it cannot be cancelled any more. Returns its work, and what ends its future."""
        work, future = self._waiting()[which]
        assert future.set_running_or_notify_cancel()
        return work, lambda: future.set_result(None)

    def _waiting(self) -> list[tuple[Callable[[], None], Future[None]]]:
        return [(work, future) for _, work, future in self.calls if not (future.running() or future.done())]


@dataclass(eq=False)
class EngineRequest:
    """An engine's record of one of its requests."""

    slot: int
    generation: int
    request: Request
    history: list[int] = field(default_factory=list)
    programs_on_server: bool = False

    def to_proto(self) -> processing_pb2.SlottedRequest:
        output = self.history[len(self.request.prompt_token_ids) :]
        message = replace(self.request, output_token_ids=output).to_proto()
        return processing_pb2.SlottedRequest(
            slot=self.slot, generation=self.generation, request=message, programs_on_server=self.programs_on_server
        )


class Engine:
    """Sends frames to a server's session, as an engine does."""

    def __init__(
        self,
        vocab_size: int,
        *toys: type,
        max_requests_per_session: int = 4,
        max_step_work: int = 32768,
        max_tokens_per_request: int = 1 << 20,
        max_message_bytes: int = 256 << 20,
        max_principal_memory: int = 384 << 20,
        device: str = "cpu",
        submit: Submit | None = None,
        **opening: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.registry = Toys(*(toys or (DenyHistory, AddOutputs, CountCalls)))
        self.session = EngineSession(
            processing_pb2.OpenSession(**{"vocab_size": vocab_size, "datatype": "FP32", **opening}),
            self.registry,  # type: ignore[arg-type]
            InlineExecutor(PayloadLoader(4)),
            torch.device(device),
            ServerConfig(
                max_requests_per_session=max_requests_per_session,
                max_step_work=max_step_work,
                max_tokens_per_request=max_tokens_per_request,
                max_message_bytes=max_message_bytes,
                max_principal_memory=max_principal_memory,
            ),
            submit=submit,
        )

    def add(
        self, slot: int, processors: Any, prompt: Iterable[int] = (1,), generation: int = 0, **fields: Any
    ) -> EngineRequest:
        known = EngineRequest(slot, generation, Request(tuple(prompt), processors=processors, **fields), list(prompt))
        self.add_again(known)
        return known

    def begin_add(
        self, slot: int, processors: Any, prompt: Iterable[int] = (1,), generation: int = 0, **fields: Any
    ) -> tuple[EngineRequest, processing_pb2.RequestsAdded]:
        """Add a request in the background. Returns it, and the reply."""
        known = EngineRequest(slot, generation, Request(tuple(prompt), processors=processors, **fields), list(prompt))
        return known, self.send_add(known, in_background=True)

    def send_add(self, *known: EngineRequest, in_background: bool) -> processing_pb2.RequestsAdded:
        """Send a frame that adds these requests."""
        reply = processing_pb2.RequestsAdded()
        frame = processing_pb2.AddRequests(requests=[one.to_proto() for one in known], in_background=in_background)
        self.admitted = session_admissions.add(self.session, frame, reply)
        return reply

    def poll(self) -> dict[tuple[int, int], type[LogitportError] | None]:
        """Collect the ended admissions: the class of the error, or None, by slot and generation."""
        ended = self.send_add(in_background=True).ended
        return {
            (one.slot, one.generation): type(from_proto(one.error)) if one.HasField("error") else None for one in ended
        }

    @staticmethod
    def unknown(slot: int, generation: int = 0) -> EngineRequest:
        """Return a request that was never added to the session."""
        return EngineRequest(slot, generation, Request())

    def add_again(self, *known: EngineRequest) -> list[list[str]]:
        """Add requests again and return their chains as the session reports them. Raises the first refusal."""
        reply = processing_pb2.RequestsAdded()
        self.admitted = session_admissions.add(
            self.session, processing_pb2.AddRequests(requests=[one.to_proto() for one in known]), reply
        )
        assert len(reply.reads_logits) == len(reply.chains) == len(known)
        for failure in reply.failures:
            raise from_proto(failure.error)
        return [list(chain.processors) for chain in reply.chains]

    def remove(self, known: EngineRequest) -> None:
        self.session.remove(processing_pb2.RemoveRequests(slots=int32(known.slot), generations=int32(known.generation)))

    def step(
        self,
        sampled: Mapping[EngineRequest, Iterable[int]],
        drafts: Mapping[EngineRequest, list[int]] | None = None,
        **columns: bytes,
    ) -> processing_pb2.StepEdits:
        """Send the sampled ids, and append them to the engine's histories."""
        drafts = drafts or {}
        new = {known: list(ids) for known, ids in sampled.items()}
        frame = processing_pb2.Step(
            slots=int32(*(known.slot for known in new)),
            generations=int32(*(known.generation for known in new)),
            base_lengths=int32(*(len(known.history) for known in new)),
            history_crcs=np.array([zlib.crc32(int32(*known.history)) for known in new], "<u4").tobytes(),
            new_token_counts=int32(*map(len, new.values())),
            new_token_ids=int32(*(token_id for ids in new.values() for token_id in ids)),
        )
        if drafts:
            frame.draft_counts = int32(*(len(drafts.get(known, ())) for known in new))
            frame.draft_token_ids = int32(*(token_id for known in new for token_id in drafts.get(known, ())))
        for name, column in columns.items():
            setattr(frame, name, column)
        reply = processing_pb2.StepEdits()
        data = processing_pb2.SessionRequest(seq=1, step=frame).SerializeToString()
        session_steps.step(self.session, frame, data, reply)
        for known, ids in new.items():
            known.history += ids
        return reply

    def process(self, rows: int) -> tuple[torch.Tensor, processing_pb2.StepLogitsEdited]:
        """Send zeros as the logits that the last step requested."""
        message = processing_pb2.StepLogits()
        tensors.write(message.logits, torch.zeros(rows, self.vocab_size))
        reply = processing_pb2.StepLogitsEdited()
        session_steps.edit_logits(self.session, message, reply)
        return tensors.to_torch(reply.logits), reply

    def denied(self, reply: processing_pb2.StepEdits, rows: int) -> list[list[int]]:
        """Return the ids that the edits deny, by row."""
        logits = np.zeros((rows, self.vocab_size), np.float32)
        apply_edits(Edits.from_proto(reply.edits, rows, self.vocab_size), logits)
        return [np.flatnonzero(row == -np.inf).tolist() for row in logits]

    @staticmethod
    def failures(reply: Any) -> dict[int, tuple[type[LogitportError], bool]]:
        """Return the class of each failed request's error, and whether it was skipped, by slot."""
        return {failure.slot: (type(from_proto(failure.error)), failure.skipped) for failure in reply.failures}


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.fixture(scope="session")
def admission() -> type[Admission]:
    """The class, because a property test needs a new instance for each example."""
    return Admission


@pytest.fixture
def submitted() -> Submitted:
    """Runs admissions in the background when the test says so."""
    return Submitted()


@pytest.fixture(scope="session")
def open_engine() -> type[Engine]:
    """Opens a session of a new server."""
    return Engine


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the server's options from the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
