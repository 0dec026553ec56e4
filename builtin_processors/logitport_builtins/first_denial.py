"""The event of built-ins that deny ids after some histories: at the first row that does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class FirstDenial:
    """Finds the first row of an output that denies ids. A length of the history names its row.

    It follows from the history alone, although a session may compute some rows never, or several times.
    """

    __slots__ = ("_checked", "_first")

    def __init__(self) -> None:
        self._checked = 0  # no row below it denies ids
        self._first = -1  # negative: not known

    def is_at(self, begin: int, length: int, denies: bool, denying: Callable[[int], Iterable[int]]) -> bool:
        """Whether the row at this length, which `denies` ids or not, is the first from `begin` on that does.

        `denying` yields the rows from a length on, below the present one, that deny ids, ascending. It is called only
        if the first row that was computed and denies ids comes after rows that were not.
        """
        if self._first < 0:
            self._checked = max(self._checked, begin)
            if not denies:
                self._checked += self._checked == length
                return False
            earlier = denying(self._checked) if self._checked < length else ()
            self._first = self._checked = next(iter(earlier), length)
        return self._first == length

    def rewind(self, length: int) -> None:
        """Follow a history that was cut back to this length."""
        self._checked = min(self._checked, length + 1)
        if self._first > length:
            self._first = -1
