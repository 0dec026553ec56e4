"""Stub of vLLM's module of this name: standard loggers with vLLM's `*_once` methods."""

from __future__ import annotations

import logging
from typing import Any


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg] # generic for the checker alone, in Python 3.10
    """A logger; its `*_once` methods log each message once."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self._logged: set[tuple[int, str, str]] = set()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return init_logger, (self.logger.name,)

    def _once(self, level: int, message: str, args: tuple[Any, ...]) -> None:
        key = level, message, repr(args)
        if key not in self._logged:
            self._logged.add(key)
            self.log(level, message, *args)

    def debug_once(self, msg: str, *args: Any, scope: str = "") -> None:
        self._once(logging.DEBUG, msg, args)

    def info_once(self, msg: str, *args: Any, scope: str = "") -> None:
        self._once(logging.INFO, msg, args)

    def warning_once(self, msg: str, *args: Any, scope: str = "") -> None:
        self._once(logging.WARNING, msg, args)

    def error_once(self, msg: str, *args: Any, scope: str = "") -> None:
        self._once(logging.ERROR, msg, args)


def init_logger(name: str) -> _Logger:
    """Create a logger with this name."""
    return _Logger(logging.getLogger(name))
