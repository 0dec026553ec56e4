"""Batches of engines that are not installed, as their hooks see them: each row is a request with one chain."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from array import array
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from logitport import Client, Request
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang.hook import Hook
from logitport.integrations.vllm import requested_chain, v1, v2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EOS = 1
PROMPT = [5, 6, 7]


def no_time() -> None:
    """Stand for a forward pass that takes no time."""


class EngineRows(ABC):
    """The rows of a batch, of which an id is sampled at each step. Close it, or use it in a `with` statement.

    Args:
        client: where sessions are.
        chain: of each row, with names of processors.
        rows: how many.
        vocab_size: width of the logits.
    """

    name: str

    def __init__(self, client: Client, chain: list[Any], rows: int, vocab_size: int) -> None:
        self.client, self.chain, self.rows, self.vocab_size = client, chain, rows, vocab_size
        self.exits = ExitStack()
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Make the engine, and its requests."""

    @abstractmethod
    def append(self, token_ids: Sequence[int]) -> None:
        """Add the sampled id of each row, as the engine does."""

    @abstractmethod
    def step(self, logits: torch.Tensor, forward: Callable[[], object] = no_time) -> None:
        """Run the calls of a step. `forward` stands for the forward pass, and is called where the engine runs it."""

    def replace(self, row: int) -> None:
        """End the request of a row, and begin another one, in the next step."""
        raise NotImplementedError

    def __enter__(self) -> EngineRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.exits.close()


class SessionRows(EngineRows):
    """No engine: a session's steps alone."""

    name = "Session.step and apply"

    def start(self) -> None:
        self.session = self.exits.enter_context(
            self.client.session(vocab_size=self.vocab_size, dtype=torch.float32, eos_token_ids=[EOS])
        )
        self.handles = [self.session.add(Request(PROMPT, processors=self.chain)) for _ in range(self.rows)]
        self.token_ids: Sequence[int] | None = None

    def append(self, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids

    def step(self, logits: torch.Tensor, forward: Callable[[], object] = no_time) -> None:
        if self.token_ids is None:
            new_ids: dict[Any, list[int]] = {handle: [] for handle in self.handles}
        else:
            new_ids = {handle: [token_id] for handle, token_id in zip(self.handles, self.token_ids)}  # noqa: B905
        pending = self.session.step(new_ids)
        forward()
        pending.apply(logits, check=False)


class VllmRows(EngineRows):
    """What both runners of vLLM have."""

    def options(self, *_: Any) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size, "dtype": torch.float32, "eos_token_ids": (EOS,), "max_draft_tokens": 0}

    def params(self) -> Any:
        return SimpleNamespace(extra_args={"logitport": self.chain}, eos_token_id=EOS, stop_token_ids=())

    def start(self) -> None:
        shared = mock.Mock(session=self.client.session, timeout=self.client.timeout)
        for module, name, value in (
            (v1.environment, "client", lambda: shared),
            (requested_chain, "sampling_params", lambda params: {}),
            *((module, "session_options", self.options) for module in (v1, v2)),
            *((module, "ranks_here", Ranks) for module in (v1, v2)),
            (v1, "samples_here", lambda: True),
        ):
            self.exits.enter_context(mock.patch.object(module, name, value))
        self.made = 0
        self.make()

    def make(self) -> None:
        """Make the runner."""
        raise NotImplementedError

    def next_name(self) -> str:
        self.made += 1
        return f"r{self.made}"


class FirstRunnerRows(VllmRows):
    """vLLM's first runner, with synchronous scheduling, or with ids that arrive during the forward pass."""

    name = "vLLM, first runner"
    asynchronous = False

    def make(self) -> None:
        self.hook = v1.V1Hook(SimpleNamespace(instance_id=""), "cpu")
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_ids=[None] * self.rows, req_output_token_ids=[None] * self.rows)
        self.added: list[Any] = []
        self.removed: list[int] = []
        self.pending: Sequence[int] = ()
        for row in range(self.rows):
            self._add(row)

    def _add(self, row: int) -> None:
        name, ids = self.next_name(), []
        self.requests[name] = SimpleNamespace(req_id=name, num_computed_tokens=0, num_tokens=0)
        self.input_batch.req_ids[row], self.input_batch.req_output_token_ids[row] = name, ids
        self.added.append((row, self.params(), PROMPT, ids))

    def replace(self, row: int) -> None:
        del self.requests[self.input_batch.req_ids[row]]
        self.removed.append(row)
        self._add(row)

    def append(self, token_ids: Sequence[int]) -> None:
        new = [name for row, name in enumerate(self.input_batch.req_ids) if any(it[0] == row for it in self.added)]
        self.pending = token_ids
        for name, ids, token_id in zip(
            self.input_batch.req_ids, self.input_batch.req_output_token_ids, token_ids, strict=True
        ):
            if name not in new:
                ids.append(-1 if self.asynchronous else token_id)

    def step(self, logits: torch.Tensor, forward: Callable[[], object] = no_time) -> None:
        update = None
        if self.added or self.removed:
            update = SimpleNamespace(removed=self.removed, added=self.added, moved=[], batch_size=self.rows)
            self.added, self.removed = [], []
        self.execute(SimpleNamespace(num_scheduled_tokens={}), update)
        forward()
        if self.asynchronous:
            for ids, token_id in zip(self.input_batch.req_output_token_ids, self.pending):  # noqa: B905 - none at first
                if ids:
                    ids[-1] = token_id
        self.hook.apply(logits)

    def execute(self, scheduler_output: Any, update: Any) -> None:
        self.hook.update_state(update)
        del scheduler_output  # the hook finds it in this frame


class AsynchronousRows(FirstRunnerRows):
    """Sampled ids are placeholders until the forward pass has begun."""

    name = "vLLM, first runner, asynchronous"
    asynchronous = True


class SecondRunnerRows(VllmRows):
    """vLLM's second runner: requests have slots, and the histories are tensors."""

    name = "vLLM, second runner"
    max_length = 4096

    def make(self) -> None:
        slots = 2 * self.rows
        self.all_token_ids = SimpleNamespace(gpu=torch.zeros(slots, self.max_length, dtype=torch.int32))
        self.total_len = SimpleNamespace(gpu=torch.zeros(slots, dtype=torch.int32))
        self.prompt_len = SimpleNamespace(np=np.full(slots, len(PROMPT), np.int32))
        self.prefill_len = SimpleNamespace(np=np.full(slots, len(PROMPT), np.int32))
        self.index_to_req_id: dict[int, str] = {}
        self.device, self.req_states = torch.device("cpu"), self
        self.hook = v2.V2Hook(SimpleNamespace(instance_id=""), self)
        self.slots = list(range(self.rows - 1, -1, -1))
        self.finished: list[str] = []
        self.new = set(self.slots)
        for slot in self.slots:
            self._add(slot)
        self._describe()

    def _add(self, slot: int) -> None:
        self.index_to_req_id[slot] = self.next_name()
        self.all_token_ids.gpu[slot, : len(PROMPT)] = torch.tensor(PROMPT, dtype=torch.int32)
        self.total_len.gpu[slot] = len(PROMPT)
        self.hook.add_request(slot, self.params())

    def replace(self, row: int) -> None:
        slot = self.slots[row]
        self.finished.append(self.index_to_req_id.pop(slot))
        self.slots[row] = slot = (slot + self.rows) % (2 * self.rows)
        self.new.add(slot)
        self._add(slot)

    def append(self, token_ids: Sequence[int]) -> None:
        own = [(slot, token_id) for slot, token_id in zip(self.slots, token_ids, strict=True) if slot not in self.new]
        lengths = self.total_len.gpu.numpy()  # torch's threads would compete with the step that follows
        for slot, token_id in own:
            self.all_token_ids.gpu.numpy()[slot, lengths[slot]] = token_id
            lengths[slot] += 1
        self._describe()

    def _describe(self) -> None:
        """Make the context of the next step: not a part of the hook's work."""
        self.context = SimpleNamespace(
            idx_mapping_np=np.array(self.slots, np.int32),
            seq_lens_upper_bound_np=self.total_len.gpu.numpy()[self.slots],
        )

    def step(self, logits: torch.Tensor, forward: Callable[[], object] = no_time) -> None:
        self.new = set()
        self.execute(SimpleNamespace(preempted_req_ids=None, finished_req_ids=self.finished))
        forward()
        self.finished = []
        self.hook.apply(logits, self.context)

    def execute(self, scheduler_output: Any) -> None:
        self.hook.apply_staged_writes()
        del scheduler_output  # the hook finds it in this frame


class SchedulerReq:
    """The part of SGLang's `Req` that the hook reads."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.origin_input_ids = self.origin_input_ids_unpadded = array("q", PROMPT)
        self.output_ids = array("q")
        self.eos_token_ids = {EOS}
        self.inflight_middle_chunks = 0
        self.beam_group = None
        self.to_finish: Any = None
        self.finished_reason: Any = None

    def finished(self) -> bool:
        return self.finished_reason is not None


class SchedulerRows(EngineRows):
    """SGLang's scheduler."""

    name = "SGLang"

    def start(self) -> None:
        for name, value in (
            *(("published_names", dict), ("max_draft_tokens", int)),
            *(("engine_name", str), ("is_disaggregated", bool)),
        ):
            self.exits.enter_context(mock.patch(f"logitport.integrations.sglang.hook.{name}", value))
        self.hook = Hook(lambda: self.client, tuple, Ranks(), "")
        self.exits.callback(self.hook._holder.close)
        self.reqs: list[SchedulerReq] = []
        self.custom_params: list[Any] = []
        self.new: set[int] = set()
        for row in range(self.rows):
            self.reqs.append(SchedulerReq(f"r{row}"))
            self.custom_params.append(self._params(row))

    def _params(self, row: int) -> dict[str, Any]:
        self.new.add(row)
        return {"logitport": self.chain, "__req__": weakref.proxy(self.reqs[row])}

    def replace(self, row: int) -> None:
        self.reqs[row].finished_reason = "stop"
        self.reqs[row] = SchedulerReq(f"another r{row}")
        self.custom_params[row] = self._params(row)

    def append(self, token_ids: Sequence[int]) -> None:
        for row, (req, token_id) in enumerate(zip(self.reqs, token_ids, strict=True)):
            if row not in self.new:
                req.output_ids.append(token_id)

    def step(self, logits: torch.Tensor, forward: Callable[[], object] = no_time) -> None:
        self.new = set()
        forward()
        self.hook.process(logits, list(self.custom_params))


ENGINES = (FirstRunnerRows, AsynchronousRows, SecondRunnerRows, SchedulerRows)
