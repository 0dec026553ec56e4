"""Reads the present state of a processor in less time than a payload takes."""

from __future__ import annotations

import hashlib
import io
from itertools import chain
from typing import Any, NamedTuple

from logitport import dialects
from logitport.payload.encode import root_of
from logitport.payload.pickler import ProcessorPickler

# Containers of more elements are read only by code that a program has not: a vocabulary, not a list of ids.
_MAX_LIFTED_ELEMENTS = 10_000
_CONTAINERS = {list, tuple, set, frozenset, dict}
_SHORT = 64  # shorter containers are saved element by element
_CONSTANTS = frozenset((type(None), bool, int, float, str, bytes))


class State(NamedTuple):
    """The state of a processor and of all that is shipped with it, without the objects themselves.

    Attributes:
        digest: of the whole state: the same digest means the same pickle.
        large: the first container of over 10,000 elements, for messages; "" if there is none.
    """

    digest: bytes
    large: str


def state_of(processor: object) -> State:
    """Read the present state of a processor. Takes 0.5 ms for a small class, and 0.02 to 0.2 s for 150,000 strings.

    Raises:
        Exception: it cannot be serialized; `dumps` says why.
    """
    root, _ = root_of(processor)
    file = io.BytesIO()
    pickler = _StatePickler(file, dialects.author_of(root))
    pickler.dump(root)
    return State(hashlib.blake2b(file.getbuffer()).digest(), pickler.large)


class _StatePickler(ProcessorPickler):
    """Saves a processor only to hash it. Its output is no pickle: it has texts in place of large containers."""

    def __init__(self, file: io.BytesIO, author: Any) -> None:
        super().__init__(file, author)
        self.large = ""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if type(obj) in _CONTAINERS and len(obj) > _SHORT and id(obj) not in self.memo:
            if len(obj) > _MAX_LIFTED_ELEMENTS:
                where = self._trail[-1] if self._trail else "the processor"
                self.large = self.large or f"{where} is a {type(obj).__name__} of {len(obj):,} elements"
            if _holds_constants(obj):
                self._save_as_text(obj)
                return
        super().save(obj, save_persistent_id)

    def _save_as_text(self, container: Any) -> None:
        elements = sorted(container, key=repr) if isinstance(container, set | frozenset) else container
        self.write(f"{type(container).__name__} {elements!r}".encode("utf-8", "surrogatepass"))
        self.memoize(container)


def _holds_constants(container: Any) -> bool:
    """Whether the container holds only constants, and tuples of constants."""
    elements = chain(container, container.values()) if isinstance(container, dict) else container
    others = [element for element in elements if type(element) not in _CONSTANTS]
    # No lists, dicts and sets: a text shows neither whether two of them are one object, nor a set in sorted order.
    return all(type(one) is tuple and _CONSTANTS.issuperset(map(type, one)) for one in others)
