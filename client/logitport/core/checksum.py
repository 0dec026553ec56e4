"""The checksum by which both ends of a session compare a history."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from logitport.compiled import core

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT32_LE = struct.Struct("<i")


def python_extend_crc(crc: int, token_ids: Sequence[int]) -> int:
    """Extend a checksum by ids: CRC-32 (IEEE 802.3, as in zlib) of little-endian int32; start with `crc` 0."""
    if len(token_ids) == 1:  # the usual step
        return zlib.crc32(_INT32_LE.pack(token_ids[0]), crc)
    return zlib.crc32(struct.pack(f"<{len(token_ids)}i", *token_ids), crc)


extend_crc = python_extend_crc if core is None else core.extend_crc
