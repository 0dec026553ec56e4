from collections.abc import Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


INTERFACE: int = 1

def set_error_factory(factory: object) -> None:
    """
    Set the callable (code, message) that makes the exception for an error of the core.
    """

@overload
def extend_crc(crc: int, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    Extend a checksum by ids in an array, int32[n]: CRC-32 of little-endian int32.
    """

@overload
def extend_crc(crc: int, token_ids: Sequence[int]) -> int:
    """Extend a checksum by ids in a sequence."""
