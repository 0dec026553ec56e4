"""Programs whose payloads are stored: those of the built-ins and of the gallery, and one with constants."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from logitport import Float, TensorProcessor, payload
from logitport_builtins.programs.builtin_programs import BUILTIN_PROGRAMS
from logitport_programs.capturing import capture

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAMS: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon_cutoff": 0.01},
    "eta": {"eta_cutoff": 0.01},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.9},
    "typical_p": {"typical_p": 0.8},
}
_GALLERY: dict[str, dict[str, Any]] = {
    "allow_ids": {"ids": [3, 7, 23, 99]},
    "dynamic_temperature": {"low": 0.25, "high": 2.0},
    "exclude_top_choices": {"threshold": 0.05, "keep": [23]},
    "repetition_decay": {"penalty": 2.0, "decay": 0.5},
    "smoothing": {"factor": 0.125, "curve": 2.0},
    "target_entropy": {"bits": 2.0},
    "top_a": {"a": 0.5},
    "top_n_sigma": {},
    "watermark": {"key": 15485863},
}


class AddsConstants(TensorProcessor):
    """Adds constants, and reads the history."""

    params = {"by": Float(default=1.0)}  # noqa: RUF012 - as authors write it
    window = 2
    values = torch.arange(24) * 0.25

    def process(self, logits: torch.Tensor, params: Any, history: Any) -> torch.Tensor:
        """Return the logits plus the constants, except for the last two ids."""
        ids = torch.arange(logits.shape[-1])
        last = (history.ids[:, :, None] == ids).any(1)
        return torch.where(last, logits, logits + self.values[ids.clamp(max=23)] * params.by[:, None])


def adds_constants() -> str:
    """Return the payload of `AddsConstants` as a program."""
    return _as_program(AddsConstants)


def programs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (file, payload, params) of each program."""
    yield "constants", adds_constants(), {"by": 2.0}
    for name, params in _PARAMS.items():
        yield f"builtin-{name}", payload.seal_program(BUILTIN_PROGRAMS[name].to_bytes(), name), params
    for name, params in _GALLERY.items():
        module = importlib.import_module(f"examples.programs.{name}")
        (cls,) = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
        yield f"gallery-{name.replace('_', '-')}", _as_program(cls), params


def _as_program(cls: type[TensorProcessor]) -> str:
    return payload.seal_program(capture(cls).to_bytes(), cls.__qualname__)
