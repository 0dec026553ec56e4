"""The memory that requests hold between steps: their histories and the states of their processors.

It is charged before it is allocated, by upper bounds that follow from the length of the history. Measured bytes would
be known too late: the states of one long history can take more than the limit.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.memory_account import MemoryAccount
from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport.core.history import History
    from logitport_session.dialects import Dialect

# Upper bounds, measured in tests/server/session/test_memory.py. An id has 4 bytes in the history, and the array may be
# copied when it grows; checksums take 4 bytes for 512 ids.
_HISTORY_BYTES_PER_ID = 5
_REQUEST_BYTES = 4096
_PLACE_BYTES = 2048
# Freed memory that is worth returning to the kernel. Each return takes the memory of large logits, too, which malloc
# keeps for the next step on purpose.
_LARGE_BYTES = 64 << 20


class MemoryAccounts:
    """The account of each principal. An account exists while one of its sessions does.

    Args:
        limit: bytes that the histories and states of one principal may hold.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Names may come from certificates: their number has no limit.
        self._by_principal: weakref.WeakValueDictionary[str, MemoryAccount] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._has_freed = False

    def of(self, principal: str) -> MemoryAccount:
        """The account of a principal."""
        with self._lock:
            account = self._by_principal.get(principal)
            if account is None:
                account = self._by_principal[principal] = MemoryAccount(self._limit)
            return account

    def session_ends(self, account: MemoryAccount) -> None:
        """Note that a session of an account ends, whose requests are still charged."""
        if account.held >= _LARGE_BYTES:
            self._has_freed = True

    def take_freed(self) -> bool:
        """Whether much memory may have become free since the last call."""
        freed, self._has_freed = self._has_freed, False
        return freed


def begin_charge(history: History, account: MemoryAccount, chain: Iterable[tuple[Dialect, int]] = ()) -> None:
    """Charge a request before its states are built. The charge ends with its history.

    `chain` lists the processors, each with the size of its parameters as JSON.

    Raises:
        LimitExceeded: the principal would hold more than its limit.
    """
    fixed, per_id, per_prompt_id, per_output_id = _REQUEST_BYTES, _HISTORY_BYTES_PER_ID, 0, 0
    for dialect, params_bytes in chain:
        fixed += _PLACE_BYTES + dialect.bytes_per_params_byte * params_bytes
        per_id += dialect.bytes_per_id
        per_prompt_id += dialect.bytes_per_prompt_id
        per_output_id += dialect.bytes_per_output_id
    if per_prompt_id:  # counted only here: prompts are long, and have few distinct ids
        fixed += per_prompt_id * len(np.unique(history.prompt_token_ids))
    if not history.begin_charge(account, fixed, per_id, per_output_id):
        raise too_much_memory(len(history), account.limit)


def charge(history: History, new_ids: int) -> None:
    """Charge ids that will be appended. Raises LimitExceeded if the principal would hold more than its limit."""
    length = history.length + new_ids
    if not history.charge(length):
        raise too_much_memory(length, history.memory_limit)


def too_much_memory(length: int, limit: int) -> LimitExceeded:
    """The error of a request with a history of this length."""
    return LimitExceeded(
        f"with the history of {length} ids and its processors' states, the principal's sessions would hold more than "
        f"{limit} bytes, the limit of a principal: remove requests, send shorter ones or fewer processors, or raise "
        "--max-principal-memory"
    )
