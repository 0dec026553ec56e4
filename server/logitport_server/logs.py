"""The server's log on stderr: one event a line, as text or as JSON.

Events that operators filter or count have the field `event`, and others such as `session`, `principal` and `processor`:
they are passed to a logger as `extra`. JSON has all fields. Text has the message alone, which is complete without them.
"""

from __future__ import annotations

import logging
from typing import Literal

LogFormat = Literal["text", "json"]


def configure(level: str, log_format: LogFormat) -> None:
    """Log to stderr, unless the program has configured logging itself.

    Args:
        level: "debug", "info", "warning" or "error".
        log_format: how to write a line.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def formatter(log_format: LogFormat) -> logging.Formatter:
    """Return the formatter of log lines. Several servers may have one log: each line has the process.

    Times in JSON are UTC in the form of RFC 3339.
    """
    if log_format == "text":
        return logging.Formatter("%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s")
    from pythonjsonlogger.json import JsonFormatter  # not at the top: text does not need it

    return JsonFormatter(
        ["levelname", "name", "process", "message"],
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
        timestamp="time",
        json_ensure_ascii=False,
    )
