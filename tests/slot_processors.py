"""Processors for vLLM's revised model runner, on any base class, and a naive model of each.

They use only tensors and arrays on the CPU, so that vLLM's real interface can run them without a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

INF = float("inf")


def derive(base: type[Any]) -> SimpleNamespace:
    """The classes `Biases`, `BadWords` and `Counts`, derived from a base class."""

    class Biases(base):
        """Adds `bias`, id by id, and denies the ids of `stop` until there are `min_tokens` output ids."""

        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            if (sampling_params.extra_args or {}).get("min_tokens", 0) < 0:
                raise ValueError("min_tokens is negative")

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            super().__init__(vllm_config, req_states)
            self.prompt_len = req_states.prompt_len.np
            shape = req_states.max_num_reqs, req_states.vocab_size
            self.bias = torch.zeros(shape)
            self.stop = torch.zeros(shape, dtype=torch.bool)
            self.min_len = np.zeros(req_states.max_num_reqs, np.int64)
            self.staged: dict[int, dict[str, Any]] = {}

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            params = sampling_params.extra_args or {}
            self.min_len[req_idx] = self.prompt_len[req_idx] + params.get("min_tokens", 0)
            self.staged[req_idx] = params
            return bool(params.get("bias") or params.get("min_tokens"))

        def apply_staged_writes(self) -> None:
            for slot, params in self.staged.items():
                self.bias[slot].zero_()
                for token_id, value in (params.get("bias") or {}).items():
                    self.bias[slot, int(token_id)] = value
                self.stop[slot].zero_()
                self.stop[slot, params.get("stop") or []] = True
            self.staged.clear()

        def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
            slots = ctx.expanded_idx_mapping
            logits += self.bias[slots]
            short = ctx.pos + 1 < torch.from_numpy(self.min_len)[slots]
            return logits.masked_fill_(self.stop[slots] & short[:, None], -INF)

    class BadWords(base):
        """Denies the last id of each of `bad_words`, lists of ids, where the output ends with the others."""

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            self.states = req_states
            self.words: dict[int, list[list[int]]] = {}

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            self.words[req_idx] = (sampling_params.extra_args or {}).get("bad_words") or []
            return bool(self.words[req_idx])

        def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
            for row, (slot, local) in enumerate(
                zip(ctx.expanded_idx_mapping.tolist(), ctx.expanded_local_pos.tolist(), strict=True)
            ):
                begin, end = self.states.prompt_len.np[slot], self.states.total_len.gpu[slot]
                output = self.states.all_token_ids.gpu[slot, begin:end].tolist()
                output += ctx.input_ids[row - local + 1 : row + 1].tolist()
                for *before, last in self.words[slot]:
                    if not before or output[-len(before) :] == before:
                        logits[row, last] = -INF
            return logits

    class Counts(base):
        """Adds the number of the request's steps to the logit at the sum of the row's ids, modulo the width.

        Keeps both by slot, and reads each committed id once.
        """

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            self.states = req_states
            self.seen, self.sum, self.steps = (np.zeros(req_states.max_num_reqs, np.int64) for _ in range(3))

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            for kept in (self.seen, self.sum, self.steps):
                kept[req_idx] = 0
            return True

        def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
            for slot in set(ctx.idx_mapping_np.tolist()):
                total = int(self.states.total_len.gpu[slot])
                self.sum[slot] += int(self.states.all_token_ids.gpu[slot, self.seen[slot] : total].sum())
                self.seen[slot] = total
                self.steps[slot] += 1
            for row, (slot, local) in enumerate(
                zip(ctx.expanded_idx_mapping.tolist(), ctx.expanded_local_pos.tolist(), strict=True)
            ):
                drafted = int(ctx.input_ids[row - local + 1 : row + 1].sum())
                logits[row, (int(self.sum[slot]) + drafted) % logits.shape[1]] += int(self.steps[slot])
            return logits

    return SimpleNamespace(Biases=Biases, BadWords=BadWords, Counts=Counts)


def naive(
    name: str, row: list[float], prompt: list[int], output: list[int], params: dict[str, Any], steps: int
) -> list[float]:
    """The expected row after the processor of this name.

    Args:
        name: name of the class.
        row: float[vocab_size].
        prompt: ids of the prompt.
        output: ids of the output, then the draft tokens before the row.
        params: the request's parameters.
        steps: number of the request's steps since it was last added, including this one.
    """
    after = list(row)
    if name == "Biases":
        for token_id, value in (params.get("bias") or {}).items():
            after[int(token_id)] += value
        for token_id in params.get("stop") or [] if len(output) < params.get("min_tokens", 0) else []:
            after[token_id] = -INF
    elif name == "BadWords":
        for *before, last in params.get("bad_words") or []:
            if not before or output[-len(before) :] == before:
                after[last] = -INF
    else:
        after[(sum(prompt) + sum(output)) % len(row)] += steps
    return after
