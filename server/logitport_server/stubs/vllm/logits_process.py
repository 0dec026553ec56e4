"""Stands for vLLM's module of this name: what is called for the row of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# (output ids, logits) or (prompt ids, output ids, logits) -> logits, float[vocab_size]
LogitsProcessor: TypeAlias = Callable[..., Any]
