"""Drives processors of vLLM's second runner through their real interface, with a random table as the model."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
    build_custom_logits_processors,
    build_custom_logits_processors_params_validator,
)

from tests.engines.checkpoint import EOS, VOCAB_SIZE

if TYPE_CHECKING:
    from vllm import SamplingParams

PROCESSOR = "logitport.integrations.vllm:RemoteLogitsProcessor"
MAX_LENGTH = 256


def logits_of(history: list[int]) -> torch.Tensor:
    """Return the model's logits after a history, float32[vocab_size]."""
    seed = int.from_bytes(hashlib.sha256(repr(history).encode()).digest()[:6], "little")
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def config(max_draft_tokens: int = 0, instance_id: str = "", **parallel: Any) -> Any:
    """Return the parts of a `VllmConfig` that the hook reads."""
    speculative = SimpleNamespace(num_speculative_tokens=max_draft_tokens, enable_adaptive_verification=False)
    return SimpleNamespace(
        instance_id=instance_id,
        model_config=SimpleNamespace(
            model="tiny",
            tokenizer="tiny",
            hf_text_config=SimpleNamespace(eos_token_id=EOS),
            get_vocab_size=lambda: VOCAB_SIZE,
        ),
        speculative_config=speculative if max_draft_tokens else None,
        parallel_config=SimpleNamespace(
            **{"tensor_parallel_size": 1, "enable_batch_sharded_sampling": False} | parallel
        ),
    )


class States:
    """`RequestState`, on the CPU and without kernels."""

    def __init__(self, max_num_reqs: int) -> None:
        self.device = torch.device("cpu")
        self.max_num_reqs = max_num_reqs
        self.vocab_size = VOCAB_SIZE
        self.all_token_ids = SimpleNamespace(gpu=torch.zeros(max_num_reqs, MAX_LENGTH, dtype=torch.int32))
        self.total_len = SimpleNamespace(gpu=torch.zeros(max_num_reqs, dtype=torch.int32))
        self.prompt_len = SimpleNamespace(np=np.zeros(max_num_reqs, np.int32))
        self.prefill_len = SimpleNamespace(np=np.zeros(max_num_reqs, np.int32))
        self.index_to_req_id: dict[int, str] = {}
        self.free = list(range(max_num_reqs))

    def add(self, name: str, prompt: list[int], outputs: list[int]) -> int:
        slot = self.free.pop()
        self.index_to_req_id[slot] = name
        ids = [*prompt, *outputs]
        self.prompt_len.np[slot], self.prefill_len.np[slot] = len(prompt), len(ids)
        self.total_len.gpu[slot] = len(ids)
        self.all_token_ids.gpu[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        return slot

    def remove(self, slot: int) -> None:
        del self.index_to_req_id[slot]
        self.free.append(slot)

    def append(self, slot: int, ids: list[int]) -> None:
        length = int(self.total_len.gpu[slot])
        self.all_token_ids.gpu[slot, length : length + len(ids)] = torch.tensor(ids, dtype=torch.int32)
        self.total_len.gpu[slot] += len(ids)


@dataclass
class Sequence:
    """A request of the driver's."""

    name: str
    prompt: list[int]
    params: SamplingParams
    length: int
    outputs: list[int] = field(default_factory=list)
    slot: int = -1
    read: int = 0
    stopped: bool = False

    @property
    def history(self) -> list[int]:
        return [*self.prompt, *self.outputs]

    @property
    def ended(self) -> bool:
        return self.stopped or len(self.outputs) >= self.length


class Runner:
    """A scheduler and a model runner in one: prompt chunks, preemption, rows that move, draft tokens.

    Args:
        slots: the most requests at once.
        drafts: draft tokens per request; about half of them are right.
        chunk: the most prompt ids that a step reads of a request.
        preempts: the share of steps in which a request is preempted.
        verify_at_once: requests in one call of `apply`.
        instance_id: names the engine to front ends, which then get reports; "" for none.
    """

    def __init__(
        self,
        slots: int = 6,
        *,
        drafts: int = 0,
        chunk: int = 7,
        preempts: float = 0.1,
        verify_at_once: int = 100,
        seed: int = 0,
        processor: Any = PROCESSOR,
        instance_id: str = "",
    ) -> None:
        self.req_states = States(slots)
        self.drafts, self.chunk, self.preempts, self.verify_at_once = drafts, chunk, preempts, verify_at_once
        (self.processor,) = build_custom_logits_processors(
            config(drafts, instance_id), self.req_states, False, [processor]
        )
        self.validate = build_custom_logits_processors_params_validator([processor])
        self.random = random.Random(seed)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.finished: set[str] = set()
        self.needs: set[int] = set()
        self.preemptions = 0
        self.steps = 0

    def submit(self, name: str, prompt: list[int], params: SamplingParams, length: int) -> Sequence:
        self.validate(params)
        params.update_from_generation_config({}, EOS)
        sequence = Sequence(name, prompt, params, length)
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        sequence.stopped = True

    def run(self) -> None:
        while self.waiting or self.running:
            self.step()

    def step(self) -> None:
        self.steps += 1
        preempted = set()
        for sequence in [sequence for sequence in self.running if sequence.ended]:
            self.running.remove(sequence)
            self.finished.add(sequence.name)
        if len(self.running) > 1 and self.random.random() < self.preempts:
            victim = self.running.pop(self.random.randrange(len(self.running)))
            preempted.add(victim.name)
            self.preemptions += 1
            self.waiting.appendleft(victim)
        new = []
        gone = self.finished | preempted
        free = len(self.req_states.free) + sum(name in gone for name in self.req_states.index_to_req_id.values())
        while self.waiting and len(new) < free and not (preempted and self.waiting[0].name in preempted):
            new.append(self.waiting.popleft())
        self.execute_model(SimpleNamespace(finished_req_ids=self.finished, preempted_req_ids=preempted, new=new))
        self.finished = set()

    def execute_model(self, scheduler_output: Any) -> None:
        self.add_requests(scheduler_output)
        self.random.shuffle(self.running)
        if self.running:
            self.sample()

    def add_requests(self, scheduler_output: Any) -> None:
        for slot, name in sorted(self.req_states.index_to_req_id.items()):
            if name in scheduler_output.finished_req_ids | scheduler_output.preempted_req_ids:
                self.req_states.remove(slot)
                self.needs.discard(slot)
        for sequence in scheduler_output.new:
            sequence.slot = self.req_states.add(sequence.name, sequence.prompt, sequence.outputs)
            sequence.read = 0
            if self.processor.add_request(sequence.slot, sequence.params):
                self.needs.add(sequence.slot)
            self.running.append(sequence)
        self.processor.apply_staged_writes()

    def sample(self) -> None:
        """Read a chunk of each unread prompt, and sample where all of it is read."""
        batch = [sequence for sequence in self.running if self.random.random() < 0.9] or self.running
        rows: list[tuple[Sequence, list[int]]] = []
        for sequence in batch:
            prefill = int(self.req_states.prefill_len.np[sequence.slot])
            decodes = sequence.read >= prefill
            sequence.read = len(sequence.history) if decodes else min(prefill, sequence.read + self.chunk)
            rows.append((sequence, self.draft(sequence) if decodes else []))
        sampled = []
        for begin in range(0, len(rows), self.verify_at_once):
            sampled += self.verify(rows[begin : begin + self.verify_at_once])
        for sequence, ids in sampled:
            if sequence.read >= int(self.req_states.prefill_len.np[sequence.slot]) and not sequence.stopped:
                if EOS in ids:
                    ids, sequence.stopped = ids[: ids.index(EOS) + 1], True  # noqa: PLW2901
                sequence.outputs += ids
                self.req_states.append(sequence.slot, ids)

    def draft(self, sequence: Sequence) -> list[int]:
        """Return ids that the model alone would choose, some of them replaced by wrong ones."""
        history, drafts = sequence.history, []
        for _ in range(self.random.randrange(self.drafts + 1)):
            drafts.append(int(logits_of([*history, *drafts]).argmax()))
            if self.random.random() < 0.3:
                drafts[-1] = self.random.randrange(VOCAB_SIZE)
        return drafts

    def verify(self, rows: list[tuple[Sequence, list[int]]]) -> list[tuple[Sequence, list[int]]]:
        """Return the ids that each request gets: drafts up to the first wrong one, and one more."""
        owners = [(sequence, drafts, offset) for sequence, drafts in rows for offset in range(1 + len(drafts))]
        logits = torch.stack(
            [logits_of([*sequence.history[: sequence.read], *drafts[:offset]]) for sequence, drafts, offset in owners]
        )
        slots = [sequence.slot for sequence, _ in rows]
        context = LogitsContext(
            expanded_idx_mapping=torch.tensor([sequence.slot for sequence, _, _ in owners], dtype=torch.int32),
            idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping_np=np.array(slots, np.int32),
            expanded_local_pos=torch.tensor([offset for _, _, offset in owners], dtype=torch.int32),
            input_ids=torch.tensor(
                [drafts[offset - 1] if offset else sequence.history[-1] for sequence, drafts, offset in owners],
                dtype=torch.int32,
            ),
            pos=torch.tensor([sequence.read - 1 + offset for sequence, _, offset in owners]),
            seq_lens_upper_bound_np=np.array([sequence.read + len(drafts) for sequence, drafts in rows], np.int32),
        )
        if self.needs.intersection(slots):
            logits = self.processor.apply(logits, context)
        chosen = logits.argmax(dim=1).tolist()
        sampled, row = [], 0
        for sequence, drafts in rows:
            ids = chosen[row : row + 1 + len(drafts)]
            right = next((place for place, draft in enumerate(drafts) if ids[place] != draft), len(drafts))
            sampled.append((sequence, ids[: right + 1]))
            row += 1 + len(drafts)
        return sampled


__all__ = ["Runner", "Sequence", "LogitsProcRequestState", "config", "logits_of"]
