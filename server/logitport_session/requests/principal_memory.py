"""The memory that requests hold between steps: their histories and the states of their processors.

It is charged before it is allocated, by upper bounds that follow from the length of the history. Measured bytes would
be known too late: the states of one long history can take more than the limit.
"""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.memory_account import MemoryAccount
from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logitport.core.history import History
    from logitport_session.dialects import Dialect

# Upper bounds (tests/server/session/test_principal_memory.py). An id has 4 bytes in the history, and the array may be
# copied when it grows; checksums take 4 bytes for 512 ids.
_HISTORY_BYTES_PER_ID = 5
_REQUEST_BYTES = 4096
_PLACE_BYTES = 2048
# Of a processor that holds in a phase: an output may consist of tags, and the array of their positions doubles.
_PHASE_BYTES_PER_OUTPUT_ID = 16
# Its view of the history keeps the array of the last block, which the history may have outgrown since.
_VIEW_BYTES_PER_ID = 4
# Freed memory that is worth returning to the kernel. Each return takes the memory of large logits, too, which malloc
# keeps for the next step on purpose.
_LARGE_BYTES = 64 << 20
# A smaller part of the limit is not worth a message. After a refusal, none is requested for a while: each request takes
# time of the front door, which other principals share.
_PARTS, _PAUSE_SECONDS = 256, 0.05
# Each may bring half of what the other processes have left.
_MAX_LOANS = 8


class PrincipalMemory(MemoryAccount):
    """The account of one principal's sessions in this process. Thread-safe.

    What the principal's other processes may hold is held here, too: the processes together stay within the limit.

    Args:
        limit: bytes that the histories and states of the principal may hold.
        borrow: requests a further part of the limit for this process. Returns its bytes, or raises LogitportError.
            Without it, the process has all of the limit.
    """

    def __init__(self, limit: int, borrow: Callable[[], int] | None = None) -> None:
        super().__init__(limit)
        self._borrow = borrow
        self._lock = threading.Lock()
        self._borrowing = threading.Lock()
        self._loans = 0
        self._refused_until = -math.inf
        self._has_freed = False
        self._elsewhere = 0 if borrow is None else limit
        self.add(self._elsewhere)

    def grow(self) -> bool:
        """Borrow a further part of the limit. Returns whether a charge may fit now that did not before.

        Raises LogitportError if the front door has ended.
        """
        if self._borrow is None:
            return False
        loans = self._loans
        with self._borrowing:
            if loans != self._loans:  # another thread has borrowed
                return True
            if time.monotonic() < self._refused_until:
                return False
            lent = self._borrow()
            if not lent:
                self._refused_until = time.monotonic() + _PAUSE_SECONDS
                return False
            self._loans += 1
            with self._lock:
                self._elsewhere -= lent
            self.remove(lent)
            return True

    def give_back(self) -> int:
        """Leave half of the free part to the principal's other processes. Returns its bytes; does not wait."""
        half = (self.limit - self.held) // 2
        if half < self.limit // _PARTS or not self.add(half):
            return 0
        with self._lock:
            self._elsewhere += half
        return half

    def session_ends(self) -> None:
        """Note that a session ends, whose requests are still charged."""
        if self.held - self._elsewhere >= _LARGE_BYTES:
            self._has_freed = True

    def take_freed(self) -> bool:
        """Whether much memory may have become free since the last call."""
        freed, self._has_freed = self._has_freed, False
        return freed


def begin_charge(
    history: History, account: PrincipalMemory, chain: Iterable[tuple[Dialect, int]] = (), phases: int = 0
) -> None:
    """Charge a request before its states are built. The charge ends with its history.

    `chain` lists the processors, each with the size of its parameters as JSON; `phases` of them hold in a phase.

    Raises:
        LimitExceeded: the principal would hold more than its limit.
    """
    fixed, per_prompt_id = _REQUEST_BYTES, 0
    per_id = _HISTORY_BYTES_PER_ID + phases * _VIEW_BYTES_PER_ID
    per_output_id = phases * _PHASE_BYTES_PER_OUTPUT_ID
    for dialect, params_bytes in chain:
        fixed += _PLACE_BYTES + dialect.bytes_per_params_byte * params_bytes
        per_id += dialect.bytes_per_id
        per_prompt_id += dialect.bytes_per_prompt_id
        per_output_id += dialect.bytes_per_output_id
    if per_prompt_id:  # counted only here: prompts are long, and have few distinct ids
        fixed += per_prompt_id * len(np.unique(history.prompt_token_ids))
    begin = partial(history.begin_charge, account, fixed, per_id, per_output_id)
    if not begin() and not _fits_later(begin, account):
        raise too_much_memory(len(history), account.limit)


def charge_by_loan(history: History, account: PrincipalMemory | None, length: int) -> None:
    """Charge a history of this length, which `History.charge` has refused, when the account has borrowed memory.

    Raises LimitExceeded if the principal would hold more than its limit.
    """
    if not (account and _fits_later(partial(history.charge, length), account)):
        raise too_much_memory(length, history.memory_limit)


def _fits_later(charge: Callable[[], bool], account: PrincipalMemory) -> bool:
    """Borrow until the charge fits. Returns whether it does."""
    # Not without an end: two processes that need more than is left would take it from each other.
    return any(account.grow() and charge() for _ in range(_MAX_LOANS))


def too_much_memory(length: int, limit: int) -> LimitExceeded:
    """The error of a request with a history of this length."""
    return LimitExceeded(
        f"with the history of {length} ids and its processors' states, the principal's sessions would hold more than "
        f"{limit} bytes, the limit of a principal: remove requests, send shorter ones or fewer processors, or raise "
        "--max-principal-memory"
    )
