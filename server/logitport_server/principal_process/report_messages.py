"""What a principal's process reports: metrics, spans, and its sessions."""

from __future__ import annotations

from typing import Any

TO_PROCESS: tuple[type[Any], ...] = ()
TO_FRONT_DOOR: tuple[type[Any], ...] = ()
