"""Stub of vLLM's module of this name: the type of processors of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# (output ids, logits) or (prompt ids, output ids, logits) -> logits, float[vocab_size]
LogitsProcessor: TypeAlias = Callable[..., Any]
