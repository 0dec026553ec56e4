"""Simulations of a model's forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def none() -> None:
    """No forward pass: the step is not overlapped with anything."""


def sleeping(milliseconds: float) -> Callable[[], object]:
    """A sleep, like a GPU's forward pass from the CPU's point of view."""
    return lambda: time.sleep(milliseconds / 1e3)


def busy(milliseconds: float) -> Callable[[], object]:
    """Keeps all of torch's threads busy: a batch of 64 through layer after layer of 1024 x 1024 weights (4 MB each)."""
    layers = torch.randn(16, 1024, 1024) / 32
    activations = torch.randn(64, 1024)

    def run(count: int) -> None:
        hidden = activations
        for layer in range(count):
            hidden = hidden @ layers[layer % len(layers)]

    run(100)
    started = time.perf_counter()
    run(200)
    count = max(1, round(milliseconds / 1e3 / ((time.perf_counter() - started) / 200)))
    return lambda: run(count)
