"""The two forms of processors for vLLM's revised model runner, behind one interface."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from logitport import payload
from logitport_server.dialects.vllm import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.dialects.vllm.request_slots import RequestSlots
    from logitport_server.dialects.vllm.rows import Arrangement

_INTERFACE = "vllm.v1.worker.gpu.sample.logits_processor.interface"


class Form(ABC):
    """An instance of a processor, and the slots of its requests. A method that calls the processor may raise anything.

    Attributes:
        constructed_with: arguments that vLLM passes to the constructor.
        takes_drafts: whether `apply` gets the rows of all draft offsets at once.
        argmax_invariant: as in `Dialect`.
        processor: the instance.
        slots: slots of the requests.
    """

    constructed_with: ClassVar[Sequence[str]]
    takes_drafts: ClassVar[bool]
    argmax_invariant: bool = False

    def __init__(self, processor: Any, slots: RequestSlots) -> None:
        self.processor = processor
        self.slots = slots

    def remove_vacated(self) -> None:
        """Remove the requests of vacated slots from the processor, and free the slots."""
        vacated = self.slots.vacated
        while vacated:
            self.remove(vacated[0])
            self.slots.give_back(vacated.popleft())

    @abstractmethod
    def add(self, slot: int, sampling_params: Any, prompt_length: int) -> bool:
        """Add a request; its history is in the buffers. Returns whether the processor changes its logits."""

    def remove(self, slot: int) -> None:
        """Remove the slot's request."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepare a step, after requests were added and before `apply`."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: Arrangement) -> torch.Tensor:
        """Process float32[rows, vocab_size], in place or not; the result is not checked."""


class ReleasedV2(Form):
    """The form of vLLM 0.32 and 0.33."""

    constructed_with = ("vllm_config", "req_states")
    takes_drafts = True

    def __init__(
        self,
        make: Callable[..., Any],
        config: Any,
        slots: RequestSlots,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._interface = objects.module(_INTERFACE)
        state = self._interface.LogitsProcRequestState(
            device=device,
            max_num_reqs=slots.count,
            vocab_size=vocab_size,
            all_token_ids=slots.all_token_ids,
            prompt_len=slots.prompt_len,
            prefill_len=slots.prefill_len,
            total_len=slots.total_len,
        )
        super().__init__(payload.instantiate(make, config, state), slots)
        self._device = device

    def add(self, slot: int, sampling_params: Any, prompt_length: int) -> bool:  # noqa: ARG002
        changes = self.processor.add_request(slot, sampling_params)
        return changes is None or bool(changes)

    def prepare(self) -> None:
        flush = getattr(self.processor, "apply_staged_writes", None)
        if flush is not None:
            flush()

    def apply(self, logits: torch.Tensor, rows: Arrangement) -> torch.Tensor:
        histories = [request.history for request in rows.requests]
        slots = np.array([request.seat.slot for request in rows.requests], np.intp)
        lengths = np.array([history.length for history in histories], np.int32)
        counts = np.array([1 + len(drafts) for drafts in rows.drafts], np.int32)
        input_ids: list[int] = []
        for history, drafts in zip(histories, rows.drafts, strict=True):
            input_ids.append(history.at(history.length - 1) if history.length else 0)
            input_ids += drafts
        starts = np.cumsum(counts, dtype=np.int32) - counts
        local_pos = np.arange(len(input_ids), dtype=np.int32) - np.repeat(starts, counts)
        expanded = idx_mapping = self._on_device(slots.astype(np.int64))
        if len(input_ids) > len(slots):
            expanded = self._on_device(np.repeat(slots.astype(np.int64), counts))
        context = self._interface.LogitsContext(
            expanded_idx_mapping=expanded,
            idx_mapping=idx_mapping,
            idx_mapping_np=slots,
            expanded_local_pos=self._on_device(local_pos),
            input_ids=self._on_device(np.array(input_ids, np.int32)),
            pos=self._on_device(np.repeat(lengths.astype(np.int64) - 1, counts) + local_pos),
            seq_lens_upper_bound_np=lengths + counts - 1,
        )
        result: torch.Tensor = self.processor.apply(logits, context)
        return result

    def _on_device(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


class ProposedV2(Form):
    """The form that was proposed first: github.com/vllm-project/vllm/issues/25389. Each request has one row."""

    constructed_with = objects.CONSTRUCTED_WITH
    takes_drafts = False

    def __init__(
        self,
        make: Callable[..., Any],
        config: Any,
        slots: RequestSlots,
        vocab_size: int,  # noqa: ARG002 - the configuration has it
        device: torch.device,
    ) -> None:
        super().__init__(payload.instantiate(make, config, device, device.type == "cuda"), slots)
        self.argmax_invariant = bool(getattr(self.processor, "is_argmax_invariant", bool)())
        names = ("update_state", "update_states")
        self._update = next((getattr(self.processor, name) for name in names if hasattr(self.processor, name)), None)
        self._remove = getattr(self.processor, "remove_request", None)
        self._added_with = len(inspect.signature(self.processor.add_request).parameters)
        self._token_ids = slots.all_token_ids.gpu.numpy()
        self._lengths = slots.total_len.gpu.numpy()
        self._mapping: np.ndarray[Any, np.dtype[np.intp]] | None = None

    def add(self, slot: int, sampling_params: Any, prompt_length: int) -> bool:
        self.processor.add_request(*(slot, sampling_params, prompt_length)[: self._added_with])
        return True

    def remove(self, slot: int) -> None:
        if self._remove is not None:
            self._remove(slot)

    def prepare(self) -> None:
        pass

    def apply(self, logits: torch.Tensor, rows: Arrangement) -> torch.Tensor:
        mapping = np.array([request.seat.slot for request in rows.requests], np.intp)
        changed = self._mapping is None or not np.array_equal(self._mapping, mapping)
        self._mapping = mapping
        if self._update is not None:
            self._update(mapping if changed else None, self._token_ids, self._lengths)
        result: torch.Tensor = self.processor.apply(logits)
        return result
