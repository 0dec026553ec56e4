"""The checksum by which both ends of a session compare a history."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def extend_crc(crc: int, token_ids: Sequence[int]) -> int:
    """Extend a checksum by ids: CRC-32 (IEEE 802.3, as in zlib) of little-endian int32; start with `crc` 0."""
    return zlib.crc32(struct.pack(f"<{len(token_ids)}i", *token_ids), crc)
