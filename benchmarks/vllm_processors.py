"""Processors of vLLM's first runner that the hook is compared with: one that a careful user writes, and floors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from benchmarks.echo import SocketEchoStream
from benchmarks.vllm_hook import ECHO_VARIABLE

# Bytes of the hook's frame and reply in a step of 32 requests with the benchmark's chain.
_FRAME_BYTES, _REPLY_BYTES = 800, 8_500
_NO_IDS: list[int] = []


class _Request:
    """The state of one request: its n-grams, found when an id is sampled, not by a search of the history."""

    def __init__(self, banned: Sequence[int], size: int, prompt_ids: list[int], output_ids: list[int]) -> None:
        self.banned = banned
        self._size = size
        self._output_ids = output_ids  # vLLM appends to it
        self._read = 0
        self._last: tuple[int, ...] = ()
        self._following: dict[tuple[int, ...], list[int]] = {}
        self._append(prompt_ids)

    def denied(self) -> list[int]:
        """The ids that would complete an n-gram again."""
        self._append(self._output_ids[self._read :])
        self._read = len(self._output_ids)
        return self._following.get(self._last, _NO_IDS)

    def _append(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if len(self._last) == self._size - 1:
                self._following.setdefault(self._last, []).append(token_id)
            self._last = (*self._last, token_id)[-(self._size - 1) :]


class Native(LogitsProcessor):
    """The ban list and the n-gram rule of the benchmark: denies ids of all rows in one operation.

    The indices of ban lists are made once for each batch of requests.

    A request has `extra_args={"banned": [ids], "ngram_size": 2 or more}`.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._device = device
        self._requests: dict[int, _Request] = {}
        self._banned = torch.empty(0, dtype=torch.int64, device=device)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if process_dict_updates(self._requests, batch_update, _request):
            self._banned = self._indices((row, request.banned) for row, request in self._requests.items())

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._requests:
            denied = self._indices((row, request.denied()) for row, request in self._requests.items())
            # One index for each logit: twice as fast as a pair of row and id.
            logits.view(-1).index_fill_(0, torch.cat((self._banned, denied)), float("-inf"))
        return logits

    def _indices(self, ids_by_row: Any) -> torch.Tensor:
        """Positions in the logits of all rows, int64[ids]."""
        indices = [row * self._vocab_size + token_id for row, ids in ids_by_row for token_id in ids]
        return torch.tensor(indices, dtype=torch.int64, device=self._device)


def _request(params: Any, prompt_ids: list[int] | None, output_ids: list[int]) -> _Request | None:
    extra = params.extra_args or {}
    if "ngram_size" not in extra:
        return None
    return _Request(extra["banned"], extra["ngram_size"], prompt_ids or [], output_ids)


class Exchange(Native):
    """The floor of any service on the engine's machine: the native processor, and an exchange with another process.

    Sends a frame before the forward pass, and receives the reply after it, as the hook does. Parses nothing.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._echo = SocketEchoStream(os.environ[ECHO_VARIABLE], bytes(_REPLY_BYTES))
        self._waits = False

    def update_state(self, batch_update: Any) -> None:
        super().update_state(batch_update)
        self._waits = bool(self._requests)
        if self._waits:
            self._echo.send(bytes(_FRAME_BYTES))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._waits:
            self._echo.receive()
            self._waits = False
        return super().apply(logits)


class Nothing(LogitsProcessor):
    """The smallest class that vLLM accepts: it does nothing."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: Any) -> Any:
        return logits
