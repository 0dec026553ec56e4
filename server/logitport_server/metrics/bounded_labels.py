"""Labels for names that clients choose: their number is limited for each client."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

T = TypeVar("T")

OTHERS = "(others)"

_MAX_LENGTH = 128
# A label without use for this long is removed: a deleted processor may have requests that end later.
IDLE_SECONDS = 3600.0
# A label without use for this long makes room for a new one.
REPLACEABLE_SECONDS = 300.0


@dataclass(slots=True)
class _Entry(Generic[T]):
    owner: str
    used_at: float
    value: T


class BoundedLabels(Generic[T]):
    """The values of labels. A name over the limits shares the label `OTHERS` with other such names.

    Not thread-safe.

    Args:
        create: makes the value of a new label.
        fixed: names that always have a label of their own, and do not count; see `fix`.
        max_own: labels of one principal.
        max_all: labels of all principals.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        create: Callable[[], T],
        fixed: Collection[str] = (),
        *,
        max_own: int,
        max_all: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._create = create
        # With OTHERS: a principal may have this name, and a second series of one label would be refused.
        self._fixed_names = frozenset((OTHERS, *fixed))
        self._max_own = max_own
        self._max_all = max_all
        self._clock = clock
        # Created at their first use, so that a server does not show all that it could run.
        self._fixed: dict[str, T] = {}
        # By label, the least recently used one first.
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        # The same by principal, so that a full principal's oldest label is found at once.
        self._owned: dict[str, OrderedDict[str, None]] = {}

    def fix(self, names: Collection[str]) -> None:
        """Give further names a label of their own that does not count."""
        self._fixed_names |= frozenset(names)

    def get(self, name: str, principal: str) -> T:
        """Return the value of a name that a principal uses. A principal may use the label of another."""
        if name in self._fixed_names or name in self._fixed:
            return self._fixed_value(name)
        label = shortened(name)
        entry = self._entries.get(label)
        now = self._clock()
        if entry is not None:
            entry.used_at = now
            self._entries.move_to_end(label)
            self._owned[entry.owner].move_to_end(label)
            return entry.value
        if not self._makes_room(principal, now):
            return self._fixed_value(OTHERS)
        entry = self._entries[label] = _Entry(principal, now, self._create())
        self._owned.setdefault(principal, OrderedDict())[label] = None
        return entry.value

    def forget(self, name: str) -> None:
        """Drop the label of a name, if it has one. It returns with its next use, with a new value."""
        label = shortened(name)
        if label in self._entries:
            self._drop(label)

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield each label with its value. Drops those without use for an hour before."""
        now = self._clock()
        while self._entries:
            label, entry = next(iter(self._entries.items()))
            if now - entry.used_at < IDLE_SECONDS:
                break
            self._drop(label)
        yield from self._fixed.items()
        for label, entry in self._entries.items():
            yield label, entry.value

    def _fixed_value(self, label: str) -> T:
        value = self._fixed.get(label)
        if value is None:
            value = self._fixed[label] = self._create()
        return value

    def _makes_room(self, principal: str, now: float) -> bool:
        """Whether the principal may have another label. Drops one that has not been used for a while, if necessary."""
        own = self._owned.get(principal, ())
        if len(own) >= self._max_own:
            return self._drops_idle(next(iter(own)), now)
        return len(self._entries) < self._max_all or self._drops_idle(next(iter(self._entries)), now)

    def _drops_idle(self, label: str, now: float) -> bool:
        is_idle = now - self._entries[label].used_at >= REPLACEABLE_SECONDS
        if is_idle:
            self._drop(label)
        return is_idle

    def _drop(self, label: str) -> None:
        owner = self._entries.pop(label).owner
        own = self._owned[owner]
        del own[label]
        if not own:
            del self._owned[owner]  # names may come from certificates: their number has no limit


def shortened(name: str) -> str:
    """The name as a label: printable, and of limited length."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
