"""The interface of a store: values by key, changed by compare-and-set."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class StoreError(Exception):
    """The store cannot be reached, read or written.

    Attributes:
        uncertain: whether a change may have happened, because the connection was lost before its reply.
    """

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


class Conflict(Exception):
    """A key has another revision than the change expects. Nothing has changed."""


class Write(NamedTuple):
    """A change of one key.

    Attributes:
        key: the key.
        value: its new value; None to delete it.
        expected: the revision that it must have; "" if it must not exist.
    """

    key: str
    value: bytes | None
    expected: str = ""


class Index(NamedTuple):
    """The keys of a store at one moment.

    Attributes:
        version: the version of the store.
        revisions: the revision of each key.
    """

    version: str
    revisions: Mapping[str, str]


class Store(ABC):
    """Values by key. Several servers may use the same store at the same time.

    Each commit gives all keys that it writes the same new revision, which is random. A revision is therefore never
    used for two values, also after a restore from a backup. Two reads of a key with equal revisions have equal values.

    Methods raise StoreError. They are thread-safe.

    Attributes:
        id: random name of the store. All servers that use it read the same one. A store that has lost its values has
            another one.
        max_value_bytes: values that are longer are not read.
    """

    id: str
    max_value_bytes: int = 1 << 30

    @abstractmethod
    def version(self) -> str:
        """Return a text that differs after each commit. Cheap: it is called every second."""

    @abstractmethod
    def index(self) -> Index:
        """Return all keys, as they were at one moment."""

    @abstractmethod
    def read(self, keys: Sequence[str]) -> dict[str, tuple[str, bytes | None]]:
        """Return revision and value of each of these keys that exists. A value that is too long is None."""

    @abstractmethod
    def commit(self, writes: Sequence[Write]) -> str:
        """Make all changes, or none. Returns the new revision.

        Raises:
            Conflict: a key has another revision than expected. Nothing has changed.
            StoreError: nothing has changed, unless the error is `uncertain`.
        """

    def close(self) -> None:
        """Release the store."""


def new_revision() -> str:
    """Return a random revision."""
    return secrets.token_hex(16)


def mismatch(writes: Iterable[Write], revisions: Mapping[str, str]) -> str | None:
    """Return the first key that has another revision than expected, if any."""
    return next((write.key for write in writes if revisions.get(write.key, "") != write.expected), None)
