"""Finds what has changed in a processor since it was shipped, and containers too large to lift."""

from __future__ import annotations

import hashlib
import io
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport import dialects
from logitport.payload.encode import root_of
from logitport.payload.pickler import ProcessorPickler

if TYPE_CHECKING:
    from collections.abc import Iterable

# Containers of more elements are read only by code that a program has not: a vocabulary, not a list of ids.
_MAX_LIFTED_ELEMENTS = 10_000
_CONTAINERS = {list, tuple, set, frozenset, dict}
_ORDERED = {list, tuple, dict}
_SHORT = 64  # shorter containers are saved element by element
_CONSTANTS = frozenset((type(None), bool, int, float, str, bytes))
_DIGEST_BYTES = 16


class _Mark(NamedTuple):
    """A place in the pickle, where a part begins or ends.

    Attributes:
        part: the part that the bytes before it belong to.
        begins: the part that begins here; "" where one ends.
        digest: a digest of all bytes before it.
    """

    part: str
    begins: str
    digest: bytes


class Parts(NamedTuple):
    """The state of a processor and of all that is shipped with it, without the objects themselves.

    Attributes:
        marks: the begin and the end of each global, attribute, base and enclosed variable, in the order of the pickle.
        large: the first container of over 10,000 elements, for messages; "" if there is none.
    """

    marks: tuple[_Mark, ...]
    large: str

    def changed_since(self, before: Parts) -> str:
        """The first part that differs from an earlier state, such as "the global 'LIMIT' of Ban.edit"; "" if none."""
        digest = b""
        for old, new in zip(before.marks, self.marks, strict=False):
            if old != new:
                same_so_far = {digest, old.digest if old.digest == new.digest else digest}
                added_or_removed = _only(new, before, same_so_far) or _only(old, self, same_so_far)
                return added_or_removed or new.part or "the class itself"
            digest = new.digest
        return ""  # the last mark has a digest of the whole


def parts_of(processor: object) -> Parts:
    """Read the present state of a processor. Takes as long as `dumps`, and 0.1 s for 150,000 strings.

    Raises:
        Exception: it cannot be serialized; `dumps` says why.
    """
    root, _ = root_of(processor)
    pickler = _PartsPickler(dialects.author_of(root))
    pickler.dump(root)
    return pickler.parts()


class _PartsPickler(ProcessorPickler):
    """Saves a processor only to hash it. Its output is no pickle: it has no frames, and texts for large containers."""

    _created_with = frozenset()  # each attribute is a part

    def __init__(self, author: Any) -> None:
        self._output = io.BytesIO()
        super().__init__(self._output, author)
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._marks: list[_Mark] = []
        self._large = ""
        self.framer.start_framing = lambda: None  # the length of a frame would precede the part that has changed

    def parts(self) -> Parts:
        self._mark()
        return Parts(tuple(self._marks), self._large)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if type(obj) in _CONTAINERS and len(obj) > _SHORT:
            if len(obj) > _MAX_LIFTED_ELEMENTS:
                self._large = self._large or f"{self._part} is a {type(obj).__name__} of {len(obj):,} elements"
            if _holds_constants(obj):
                self._save_as_text(obj)
                return
        super().save(obj, save_persistent_id)

    def _save_as_text(self, container: Any) -> None:
        elements = sorted(container, key=repr) if isinstance(container, set | frozenset) else container
        self.write(f"{type(container).__name__} {elements!r}".encode("utf-8", "surrogatepass"))

    def _at(self, where: str, function: Any, *args: Any) -> None:
        self._mark(begins=where)
        super()._at(where, self._marked, function, *args)

    def _marked(self, function: Any, *args: Any) -> None:
        function(*args)
        self._mark()

    @property
    def _part(self) -> str:
        return self._trail[-1] if self._trail else ""

    def _mark(self, begins: str = "") -> None:
        self._hash.update(self._output.getvalue())
        self._output.seek(0)
        self._output.truncate()
        self._marks.append(_Mark(self._part, begins, self._hash.digest()))


def _only(mark: _Mark, others: Parts, digests: set[bytes]) -> str:
    """The part that begins at a mark with one of these digests, if the others lack it; otherwise ""."""
    only = mark.digest in digests and all(mark.begins != other.begins for other in others.marks)
    return mark.begins if only else ""


def _holds_constants(container: Any) -> bool:
    """Whether the container holds only constants, and lists, tuples and dicts of constants."""
    others = [element for element in _elements(container) if type(element) not in _CONSTANTS]
    # A set in a container is no such element: the order of its text depends on the order in which it was filled.
    return all(type(one) in _ORDERED and _CONSTANTS.issuperset(map(type, _elements(one))) for one in others)


def _elements(container: Any) -> Iterable[Any]:
    return chain(container, container.values()) if isinstance(container, dict) else container
