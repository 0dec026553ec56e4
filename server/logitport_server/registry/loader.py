"""The only caller of `payload.loads`, which unpickles, in the service."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from logitport import payload

if TYPE_CHECKING:
    from logitport.payload import Payload

logger = logging.getLogger(__name__)

# Classes that stay loaded with `--isolation none`. Loading one takes milliseconds, and its globals take memory.
_CACHE_SIZE = 128


class PayloadLoader:
    """A bounded cache of loaded processors, by digest, around the only call that unpickles.

    Attributes:
        load: function from a `Payload` to its processor. Raises PayloadError; failures are not cached.
    """

    def __init__(self, cache_size: int = _CACHE_SIZE) -> None:
        # Payloads compare and hash by their digest only.
        self.load = lru_cache(maxsize=cache_size)(_unpickle)

    @property
    def hits(self) -> int:
        """The number of loads that the cache served."""
        return self.load.cache_info().hits

    @property
    def misses(self) -> int:
        """The number of loads that unpickled."""
        return self.load.cache_info().misses


def _unpickle(shipped: Payload) -> Any:
    logger.info("loading shipped processor %s, %d bytes", shipped.display_name, len(shipped.data))
    return payload.loads(shipped)
