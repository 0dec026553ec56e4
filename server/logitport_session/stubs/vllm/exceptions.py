"""Stub of vLLM's module of this name."""

from __future__ import annotations

from typing import Any


class VLLMValidationError(Exception):
    """A parameter of a request is invalid.

    Attributes:
        parameter: name of the parameter; None if not given.
        value: value of the parameter; None if not given.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        given = {"parameter": self.parameter, "value": self.value}
        details = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return f"{super().__str__()} ({details})" if details else super().__str__()
