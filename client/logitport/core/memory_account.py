"""The memory that the histories and states of one principal hold, and its limit."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport.core.compiled import core

# Ids that are charged at once, at least.
_MIN_IDS = 64


class PythonMemoryAccount:
    """Bytes held in all sessions of a principal. Thread-safe.

    Args:
        limit: bytes that may be held.

    Attributes:
        limit: as the argument.
        held: bytes that are held.
    """

    __slots__ = ("__weakref__", "_lock", "held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> bool:
        """Add bytes. Returns False, and adds none, if more than the limit would be held."""
        with self._lock:
            if self.held + num_bytes > self.limit:
                return False
            self.held += num_bytes
            return True

    def remove(self, num_bytes: int) -> None:
        """Remove bytes that were added."""
        with self._lock:
            self.held -= num_bytes


if TYPE_CHECKING or core is not None:

    class MemoryAccount(core.MemoryAccount):
        """The same in the compiled core, which charges without the interpreter's lock."""

        __slots__ = ()

else:
    MemoryAccount = PythonMemoryAccount


class PythonMemoryCharge:
    """The charge of one request: its history, and the states that follow it. Removed from the account at its end.

    Args:
        account: the principal's.
        fixed: bytes of the request without its ids.
        per_id: bytes for each id of the history, at most.
        per_output_id: bytes for each id after the prompt, at most, in addition.
        prompt_length: number of ids of the prompt.
    """

    __slots__ = ("_bytes", "_length", "_prompt_length", "_rates", "account")

    def __init__(
        self, account: PythonMemoryAccount, fixed: int, per_id: int, per_output_id: int, prompt_length: int
    ) -> None:
        self.account = account
        self._rates = (fixed, per_id, per_output_id)
        self._prompt_length = prompt_length
        self._length = -1  # not 0: an empty history has states, too
        self._bytes = 0

    def grow(self, length: int) -> bool:
        """Charge the memory of this length, which is never less later: arrays keep their capacity.

        Returns:
            False, with nothing more charged, if the account has no room.
        """
        if length <= self._length:
            return True
        fixed, per_id, per_output_id = self._rates
        # A quarter more ids after the prompt, so that most steps charge nothing. Not a quarter of the prompt: few ids
        # may follow a long one, and a generated id can take many times the bytes of one in the prompt.
        charged = length + max(_MIN_IDS, (length - self._prompt_length) // 4)
        capacity = max(charged, length + length // 4)  # of arrays, which grow by a quarter
        num_bytes = fixed + per_id * capacity + per_output_id * (charged - self._prompt_length)
        if not self.account.add(num_bytes - self._bytes):
            return False
        self._length, self._bytes = charged, num_bytes
        return True

    def __del__(self) -> None:
        self.account.remove(self._bytes)
