"""The server's log on stderr: one event a line, as text or as JSON.

Events that operators filter or count have the field `event`, and others such as `session`, `principal` and `processor`:
they are passed to a logger as `extra`. What is logged while a session or call is served also has the fields of `scope`,
and the active span's. JSON has all fields. Text has the message alone, which is complete without them.
"""

from __future__ import annotations

import logging
from typing import Literal

from logitport.errors import escaped
from logitport_session.telemetry import scope, tracing

LogFormat = Literal["text", "json"]

# Loggers of libraries that write lines about their own work at the level "debug".
_NOISY = ("asyncio", "grpc", "opentelemetry", "urllib3")


def configure(level: str, log_format: LogFormat) -> None:
    """Log to stderr, unless the program has configured logging itself.

    Args:
        level: "debug", "info", "warning" or "error".
        log_format: how to write a line.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    handler.addFilter(add_fields)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def add_fields(record: logging.LogRecord) -> bool:
    """Add the fields of the present scope and span to a record, unless it has them. Returns True: it is logged."""
    for name, value in {**scope.fields(), **tracing.ids()}.items():
        record.__dict__.setdefault(name, value)
    return True


def formatter(log_format: LogFormat) -> logging.Formatter:
    """Return the formatter of log lines. Several servers may have one log: each line has the process.

    Messages have texts of clients, such as names and errors, and terminals obey control characters. Text has them
    escaped, except the ends of lines. JSON is ASCII: readers may end a line at U+2028. Times in JSON are UTC in the
    form of RFC 3339.
    """
    if log_format == "text":
        return _TextFormatter("%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s")
    from pythonjsonlogger.json import JsonFormatter  # not at the top: text does not need it

    return JsonFormatter(
        ["levelname", "name", "process", "message"],
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
        timestamp="time",
    )


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))
