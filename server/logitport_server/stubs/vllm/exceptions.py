"""Stands for vLLM's module of this name."""

from __future__ import annotations

from typing import Any


class VLLMError(Exception):
    """Base of vLLM's errors."""


class VLLMClientError(VLLMError):
    """A request is to blame."""


class VLLMValidationError(VLLMClientError):
    """A parameter of a request is refused.

    Attributes:
        parameter: its name; None if it was not told.
        value: what it was; None if it was not told.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        told = {"parameter": self.parameter, "value": self.value}
        details = ", ".join(f"{name}={value}" for name, value in told.items() if value is not None)
        return f"{super().__str__()} ({details})" if details else super().__str__()
