"""Messages about workers: the front door starts them, and a principal's process calls them."""

from __future__ import annotations

from typing import Any

TO_PROCESS: tuple[type[Any], ...] = ()
TO_FRONT_DOOR: tuple[type[Any], ...] = ()
