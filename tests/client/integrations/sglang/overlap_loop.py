"""SGLang's overlap schedule with drafts, without its model: a batch is launched before the last result is processed."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from logitport.integrations.sglang import speculation
from tests.client.integrations.sglang.test_hook import VOCAB_SIZE, Req, params_of
from tests.client.integrations.sglang.test_speculation import CHAIN, NODES, batch_of, eagle_sample, verify_input

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH = 40


def row_of(history: Sequence[int]) -> torch.Tensor:
    """Return the model's logits after these ids: float[VOCAB_SIZE], all different."""
    return torch.tensor([float((7 * one + 11 * history[-1] + 5 * len(history)) % 37) for one in range(VOCAB_SIZE)])


class OverlapLoop:
    """A scheduler with requests that end after different numbers of ids, or without a processor if the chain is empty.

    Its attributes and methods are those of SGLang's `Scheduler` that SGLang's own loop uses.
    """

    enable_unified_memory = _engine_paused = require_mlp_sync = False
    is_generation = True
    last_batch = running_batch = None

    def __init__(self, *chain: Any, requests: int = 3) -> None:
        self.reqs = [Req([2, 3 + n], rid=f"r{n}") for n in range(requests)]
        self.lengths = [LENGTH - 7 * n for n in range(requests)]
        self.params = [params_of(req, *chain) if chain else None for req in self.reqs]
        self.result_queue: deque[Any] = deque()
        # All ids that the worker knows, like SGLang's tensors: also those that the scheduler has not processed.
        self.known = {
            req.rid: [*req.origin_input_ids, int(row_of([*req.origin_input_ids]).argmax())] for req in self.reqs
        }
        for req in self.reqs:
            req.output_ids.append(self.known[req.rid][-1])
        self.verify = speculation.wrap_sample(eagle_sample)

    @property
    def gracefully_exit(self) -> bool:
        return all(req.ended for req in self.reqs) and not self.result_queue

    def event_loop_overlap(self) -> None:
        """As SGLang's, in short."""
        while not self.gracefully_exit:
            batch = self.get_next_batch_to_run(running_batch=None, last_batch=self.last_batch).batch_to_run
            early = self.is_disable_overlap_for_batch(batch, last_batch=self.last_batch)
            if early:
                self.process_batch_result(*self.result_queue.popleft())
            if batch:
                self.result_queue.append((batch, self.run_batch(batch)))
            if self.last_batch and not early:
                self.process_batch_result(*self.result_queue.popleft())
            self.last_batch = batch

    def is_disable_overlap_for_batch(self, batch: Any, last_batch: Any) -> bool:
        return False

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        running = [index for index, req in enumerate(self.reqs) if not req.ended]
        batch = None
        if running:
            batch = batch_of(*(self.params[index] for index in running))
            batch.sampling_info.has_custom_logit_processor = any(self.params)
            batch.reqs = [self.reqs[index] for index in running]
            batch.spec_algorithm = SimpleNamespace(is_none=lambda: False)
            batch.forward_mode = SimpleNamespace(is_extend=lambda: False, is_decode=lambda: True)
            batch.grammar_needs_sync = lambda: False
            batch.copy = lambda: batch
        return SimpleNamespace(running_batch=running_batch, batch_to_run=batch)

    def run_batch(self, batch: Any) -> list[list[int]]:
        drafts = [self._draft(self.known[req.rid]) for req in batch.reqs]
        rows = [
            row_of([*self.known[req.rid], *ids[1 : node + 1]])
            for req, ids in zip(batch.reqs, drafts, strict=True)
            for node in range(NODES)
        ]
        output = SimpleNamespace(next_token_logits=torch.stack(rows))
        predict, _, accepted = self.verify(verify_input([CHAIN] * len(drafts), drafts), batch, output)
        results = [[int(predict[row]) for row in of_request if row >= 0] for of_request in accepted]
        for req, ids in zip(batch.reqs, results, strict=True):
            self.known[req.rid] += ids
        return results

    def _draft(self, history: list[int]) -> list[int]:
        """Return the last id and the model's next ones, of which the third is wrong."""
        ids = [history[-1]]
        for node in range(1, NODES):
            best = int(row_of([*history, *ids[1:]]).argmax())
            ids.append(best if node != 3 else (best + 1) % VOCAB_SIZE)
        return ids

    def process_batch_result(self, batch: Any, results: list[list[int]]) -> None:
        for req, ids in zip(batch.reqs, results, strict=True):
            length = self.lengths[self.reqs.index(req)]
            if not req.ended:
                req.output_ids.extend(ids[: length - len(req.output_ids)])
                req.ended = len(req.output_ids) >= length or req.to_finish is not None

    def ingest_requests(self) -> None: ...

    def _apply_war_barrier(self) -> None: ...

    def on_idle(self) -> None: ...

    def launch_batch_sample_if_needed(self, *_: Any) -> None: ...

    def outputs(self) -> list[list[int]]:
        """Run until all requests have ended, and return their ids."""
        self.event_loop_overlap()
        assert [req.to_finish for req in self.reqs] == [None] * len(self.reqs)
        return [list(req.output_ids) for req in self.reqs]
