"""A dill pickler that ships classes and functions by value where no server can import them.

Plain dill is not enough. It ships by value only what it cannot import by name, which misses everything in the client's
own modules. It also finds the globals of a function by redirecting standard output, which is not thread-safe. So this
module saves classes and functions itself, in the form that a plain dill loads; dill saves the other types. An object is
created empty first and filled afterwards, so that cyclic references work (as in cloudpickle). Equal objects give equal
bytes.
"""

from __future__ import annotations

import abc
import functools
import importlib
import io
import pickle
import socket
import threading
import types
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any

import dill  # type: ignore[import-untyped]

from logitport.errors import PayloadError
from logitport.payload import reducers, wire_names
from logitport.payload.portability import find_by_name, globals_used, submodules_used, top_level, travels_by_value
from logitport.tokenizers import shipped_tokenizer, vocabulary_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FunctionType

_CREATE_IT = "create it in __init__, which runs in the sandbox of the server"
_NO_FILES = "the sandbox of the server has neither network nor files, except those of packages installed there"
_LIVE: dict[type, str] = {
    io.IOBase: "an open file; read it here, and keep the contents in a constant: the server does not have the file",
    type(threading.Lock()): f"a lock; {_CREATE_IT}",
    type(threading.RLock()): f"a lock; {_CREATE_IT}",
    threading.Thread: f"a thread; {_CREATE_IT}",
    socket.socket: f"a socket, and {_NO_FILES}; ship the data as a constant, or pass it in the parameters",
}
_TOKENIZER = (
    "a tokenizer of the library tokenizers",
    "token ids; a tokenizer of transformers, which is shipped as a reference to that of the server; or its "
    "tokenizer.json as text, for Tokenizer.from_str in __init__",
)
# Classes that may not be imported here: (prefix of the module's name, class name), the kind of object, and what a
# processor can use instead.
_LARGE = {
    ("transformers.", "PreTrainedModel"): ("a model", "the tensors that it needs"),
    ("tokenizers", "Tokenizer"): _TOKENIZER,
}
_IN_MEMORY = (io.BytesIO, io.StringIO)
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, type(functools.lru_cache(len)))
_NUMBERS = {type(None), bool, int, float}  # and None: pickle memoizes none of them
# A vocabulary may have 100,000 of them, and the checks take ten times as long as writing one.
_PLAIN = {bytes, dict, frozenset, list, set, tuple}
_MAX_SHORT_LENGTH = 0xFF
# Types of the attributes that a class is created with; the others are set afterwards.
_CREATED_WITH = {type(None), bool, int, float, str, bytes}
# Attributes that a class gets when it is created.
_MADE_WITH = ("__module__", "__doc__", "__slots__", "__orig_bases__")
# Attributes that Python sets itself, and annotations: they have no effect at run time, and refer to modules that a
# server need not have.
_NOT_SHIPPED = {
    *("__dict__", "__weakref__", "_abc_impl", "__abstractmethods__", "__firstlineno__", "__static_attributes__"),
    *("__slotnames__", "__annotations__", "__annotate_func__", "__annotations_cache__"),
}


class ProcessorPickler(dill.Pickler):  # type: ignore[misc]
    """Pickles one processor; `author` is its class or function, see `dialects.author_of`."""

    def __init__(self, file: Any, author: Any) -> None:
        # Sets every option that changes the bytes and that a user could otherwise change globally in dill's settings.
        super().__init__(file, protocol=4, byref=False, fmode=dill.HANDLE_FMODE, recurse=False)
        self._own_package = top_level(author.__module__)
        self._trail: list[str] = []
        self._strings: dict[str, str] = {}
        self._bytes: dict[bytes, bytes] = {}
        # By the id of a function's globals: the dict shipped in their place, and the names that it has so far.
        self._namespaces: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._filled_cells: set[int] = set()
        self._last: list[Callable[[], None]] = []
        self._outermost = True
        # Those that were saved.
        self.codes: list[types.CodeType] = []

    @property
    def where(self) -> str:
        """Path to the object that was being saved when an error occurred, from the outside in."""
        return ", ".join(self._trail) or "the processor itself"

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        """Save any object."""
        if type(obj) is str:
            # Make equal strings one object: otherwise that depends on whether their module came from a .pyc file.
            obj = self._strings.setdefault(obj, obj)
            if id(obj) not in self.memo:  # directly: a vocabulary has 150,000, and none needs the checks below
                self._save_text(obj)
                return
        elif type(obj) in _NUMBERS:
            self.framer.commit_frame()
            self.dispatch[type(obj)](self, obj)
            return
        outermost, self._outermost = self._outermost, False
        if type(obj) is bytes:
            obj = self._bytes.setdefault(obj, obj)
        is_new = id(obj) not in self.memo
        if is_new and type(obj) in _PLAIN:
            self._save_plain(obj)
        elif is_new and isinstance(obj, _NAMED):
            self._save_named(obj, save_persistent_id)
        else:
            super().save(obj, save_persistent_id)
        while outermost and self._last:
            self._last.pop(0)()

    def _save_text(self, text: str) -> None:
        """Save a string that is not in the memo, as `save_str` does."""
        self.framer.commit_frame()
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > _MAX_SHORT_LENGTH:
            self.save_str(text)
            return
        self.write(b"%b%c%b%b" % (pickle.SHORT_BINUNICODE, len(encoded), encoded, pickle.MEMOIZE))
        self.memo[id(text)] = len(self.memo), text

    def _save_plain(self, obj: Any) -> None:
        """Save a container, or bytes, that is not in the memo, without the checks that find other objects."""
        kind = type(obj)
        if kind is dict:
            self.save_dict(obj)  # pickle's own: dill's imports the module that a "__name__" in the dict names
            return
        self.framer.commit_frame()
        if kind is set or kind is frozenset:
            self.save_reduce(*reducers.reduce(obj), obj=obj)
        else:
            self.dispatch[kind](self, obj)

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object that dill's own does not fit, or NotImplemented."""
        live = next((name for kind, name in _LIVE.items() if isinstance(obj, kind)), "")
        if live and not isinstance(obj, _IN_MEMORY):
            raise PayloadError(f"it is {live}")
        if _derives(type(obj), "transformers.", "PreTrainedTokenizerBase"):
            return _tokenizer_reference(obj)
        large = _large(type(obj))
        if large:
            what, instead = large
            raise PayloadError(
                f"it is {what}, which cannot be shipped; keep in constants only what the processor uses: {instead} "
                f"({_NO_FILES})"
            )
        if isinstance(obj, types.ModuleType):
            if travels_by_value(obj.__name__, self._own_package):
                raise PayloadError(
                    f"it is {obj.__name__}, a module of your own, which no server has; a module cannot be shipped, but "
                    f"names imported from it can: write from {obj.__name__} import ..."
                )
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, types.CodeType):
            self.codes.append(obj)
            return dill._dill._create_code, reducers.code_arguments(obj)
        return reducers.reduce(obj)

    def _save_named(self, obj: Any, save_persistent_id: bool) -> None:
        reference = self._reference(obj)
        if reference is not None:
            for part in reference:
                self.save(part)
            self.write(pickle.STACK_GLOBAL)
            self.memoize(obj)
        elif isinstance(obj, types.FunctionType):
            self._save_function(obj)
        elif isinstance(obj, type) and issubclass(obj, Enum):
            self._save_filled_later(obj, *reducers.enum_class(obj))
        elif isinstance(obj, type) and obj.__module__ != "builtins":
            self._save_class(obj)
        else:
            super().save(obj, save_persistent_id)

    def _reference(self, obj: Any) -> tuple[str, str] | None:
        """Return (module, name) under which a server finds the object; None if it must be shipped by value."""
        if isinstance(obj, type):
            wire_name = wire_names.name_of(obj)
            if wire_name:
                return wire_name
        module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
        if not (isinstance(module, str) and isinstance(name, str)) or travels_by_value(module, self._own_package):
            return None
        for public in wire_names.public_modules(module):
            if find_by_name(public, name) is obj:
                return public, name
        return (module, name) if find_by_name(module, name) is obj else None

    def _save_function(self, function: FunctionType) -> None:
        namespace, names = self._namespaces.setdefault(
            id(function.__globals__), ({"__name__": function.__globals__.get("__name__")}, {"__name__", "__builtins__"})
        )
        code, closure = function.__code__, function.__closure__
        args = (code, namespace, function.__name__, None, closure and (*closure,))
        self.save_reduce(dill._dill._create_function, args, obj=function)
        self._at(f"a default or attribute of {function.__qualname__}", self.save, reducers.function_state(function))
        self.write(pickle.BUILD)
        for name, attributes in globals_used(code):
            if name in function.__globals__:
                value = function.__globals__[name]
                where = f"the global {name!r} of {function.__qualname__}"
                if name not in names:
                    names.add(name)
                    self.save(namespace)
                    self.save(name)
                    self._at(where, self.save, value)
                    self.write(pickle.SETITEM + pickle.POP)
                for submodule in submodules_used(value, attributes) if isinstance(value, types.ModuleType) else ():
                    self._call(importlib.import_module, submodule)
        for name, cell in zip(code.co_freevars, closure or (), strict=True):
            self._at(f"the variable {name!r} that {function.__qualname__} encloses", self._fill_cell, cell)

    def _fill_cell(self, cell: types.CellType) -> None:
        if id(cell) in self._filled_cells:
            return
        self._filled_cells.add(id(cell))
        try:
            contents = cell.cell_contents
        except ValueError:  # empty: its variable has not been assigned
            return
        self._call(setattr, cell, "cell_contents", contents)

    def _save_class(self, cls: type) -> None:
        if typing.is_typeddict(cls):
            raise PayloadError(f"{cls.__qualname__} is a TypedDict; at run time it is a dict: call dict(...)")
        body = {name: vars(cls)[name] for name in _MADE_WITH if name in vars(cls)}
        body["__qualname__"] = cls.__qualname__
        rest: dict[str, Any] = {}
        for name, value in _attributes(cls):
            (body if type(value) in _CREATED_WITH else rest)[name] = value
        self._save_filled_later(cls, (type(cls), (cls.__name__, cls.__bases__, body)), rest)
        if isinstance(cls, abc.ABCMeta):
            self._call(abc.update_abstractmethods, cls)

    def _save_filled_later(self, cls: type, creation: tuple[Any, tuple[Any, ...]], attributes: dict[str, Any]) -> None:
        """Save a class that `creation` (function, arguments) creates, and then its attributes."""
        for parent in (type(cls), *cls.__bases__):
            kind = "metaclass" if parent is type(cls) else "base"
            self._at(f"the {kind} {parent.__qualname__} of {cls.__qualname__}", self.save, parent)
            self.write(pickle.POP)
        if id(cls) in self.memo:  # saving a parent has saved this class already
            self.write(self.get(self.memo[id(cls)][0]))
            return
        self.save_reduce(*creation, obj=cls)
        for name, value in attributes.items():
            fill = functools.partial(
                self._at, f"the attribute {name!r} of {cls.__qualname__}", self._call, setattr, cls, name, value
            )
            # Set last: its effects on the subclasses are shipped with them, and it must not run on incomplete classes.
            self._last.append(fill) if name == "__init_subclass__" else fill()

    def _call(self, function: Any, *args: Any) -> None:
        """Make the unpickler call a function, and discard the result."""
        self.save_reduce(function, args)
        self.write(pickle.POP)

    def _at(self, where: str, function: Any, *args: Any) -> None:
        """Call a function with `where` on the trail; if it raises, `where` stays there for the error message."""
        self._trail.append(where)
        function(*args)
        self._trail.pop()


def _large(cls: type) -> tuple[str, str] | None:
    return next((described for (module, name), described in _LARGE.items() if _derives(cls, module, name)), None)


def _derives(cls: type, module: str, name: str) -> bool:
    """Whether a class derives from one that may not be imported here, of a module with this prefix."""
    return any(parent.__name__ == name and parent.__module__.startswith(module) for parent in cls.__mro__)


def _tokenizer_reference(tokenizer: Any) -> tuple[Callable[..., object], tuple[object, ...]]:
    """The reduction of a tokenizer of transformers: its digest, and what the server's one cannot know."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    size = max(vocabulary.values(), default=-1) + 1
    return shipped_tokenizer, (vocabulary_digest(vocabulary), size, str(tokenizer.name_or_path), tokens)


def _attributes(cls: type) -> Iterator[tuple[str, Any]]:
    slots = vars(cls).get("__slots__", ())
    for name, value in vars(cls).items():
        if name in _NOT_SHIPPED or name in _MADE_WITH or (slots and isinstance(value, types.MemberDescriptorType)):
            continue
        yield name, value
