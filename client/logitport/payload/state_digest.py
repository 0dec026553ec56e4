"""Reads the present state of a processor in less time than a payload takes."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport import dialects
from logitport.payload import reducers
from logitport.payload.encode import root_of
from logitport.payload.pickler import ProcessorPickler

if TYPE_CHECKING:
    from collections.abc import Callable

# A program cannot contain the code that reads such a container.
_MAX_LIFTED_ELEMENTS = 10_000
_CONTAINERS = {list, tuple, set, frozenset, dict}
_SHORT = 64  # shorter containers are saved element by element
_CONSTANTS = frozenset((type(None), bool, int, float, str, bytes))
_NESTED = frozenset((list, tuple, dict))  # and no sets: a text shows them in another order in each process


class StateDigest(NamedTuple):
    """The state of a processor and of all that is shipped with it, without the objects themselves.

    Attributes:
        digest: of the whole state. Equal digests mean that the payloads unpickle to the same state; equal tuples may
            be one object or several.
        large: the first container of over 10,000 elements, for messages, or "".
    """

    digest: bytes
    large: str


def state_of(processor: object) -> StateDigest:
    """Read the present state of a processor. docs/processor-reference.md has the times.

    Raises:
        Exception: it cannot be serialized; `dumps` says why.
    """
    root, _ = root_of(processor)
    state = hashlib.blake2b()
    pickler = _StatePickler(_Hashed(state.update), dialects.author_of(root))
    pickler.dump(root)
    return StateDigest(state.digest(), pickler.large)


class _Hashed(NamedTuple):
    """A file that keeps only its hash."""

    write: Callable[[Any], object]


class _StatePickler(ProcessorPickler):
    """Writes large containers as text, so its output cannot be unpickled."""

    def __init__(self, file: _Hashed, author: Any) -> None:
        super().__init__(file, author)
        self.large = ""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if id(obj) not in self.memo:
            if type(obj) in _CONTAINERS and len(obj) > _SHORT:
                self._note_if_large(obj)
                if self._saved_as_text(obj):
                    return
            elif type(obj) not in _CONSTANTS and reducers.is_plain_tensor(obj):
                self._save_tensor(obj)
                return
        super().save(obj, save_persistent_id)

    def _note_if_large(self, container: Any) -> None:
        if len(container) > _MAX_LIFTED_ELEMENTS and not self.large:
            where = self._trail[-1] if self._trail else "the processor"
            self.large = f"{where} is a {type(container).__name__} of {len(container):,} elements"

    def _saved_as_text(self, container: Any) -> bool:
        """Save a container of constants, and of lists, dicts and tuples of them; return False if it has others.

        A text does not show whether two lists are one object, so each must be new here, and is put into the memo.
        """
        found = {id(container): container}
        level = [container]
        while level := [one for outer in level for one in _elements(outer) if type(one) not in _CONSTANTS]:
            if not _NESTED.issuperset(map(type, level)):
                return False
            self._note_if_large(max(level, key=len))
            level = [one for one in level if type(one) is not tuple or not _CONSTANTS.issuperset(map(type, one))]
            count = len(found) + len(level)
            found.update(zip(map(id, level), level, strict=True))
            if len(found) != count:
                return False
        if not self.memo.keys().isdisjoint(found):
            return False
        elements = sorted(container, key=repr) if isinstance(container, set | frozenset) else container
        text = f"{type(container).__name__} {elements!r}".encode("utf-8", "surrogatepass")
        self._write_large_bytes(b"", text)
        for number, (key, one) in enumerate(found.items(), len(self.memo)):
            self.memo[key] = number, one
        return True

    def _save_tensor(self, tensor: Any) -> None:
        plain, data = reducers.plain_tensor(tensor)
        self._write_large_bytes(f"tensor {plain.dtype} {tuple(plain.shape)} ".encode(), data)
        self.memoize(tensor)


def _elements(container: Any) -> Any:
    return chain(container, container.values()) if type(container) is dict else container
