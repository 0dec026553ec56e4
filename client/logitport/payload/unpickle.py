"""Unpickles a payload to a processor, and makes instances: the only place that does.

In a server only `registry/loader.py` calls it, in workers or with `--isolation none`.
"""

from __future__ import annotations

import copy
import functools
import io
import traceback
from typing import TYPE_CHECKING, Any

import dill  # type: ignore[import-untyped]

from logitport import dialects
from logitport.errors import PayloadError
from logitport.payload import wire_names
from logitport.payload.python_check import check_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.payload.envelope import Payload

# The functions of cloudpickle that create classes, and the index of the class's id among their arguments.
_CLASS_MAKERS = {
    ("cloudpickle.cloudpickle", "_make_skeleton_class"): 4,
    ("cloudpickle.cloudpickle", "_make_skeleton_enum"): 5,
}


def loads(payload: Payload) -> Any:
    """Unpickle the processor in a payload. This runs the payload's code: only for trusted payloads, or in a sandbox.

    Raises:
        PayloadError: the code in it is of another Python minor version; nothing was run.
        PayloadError: unpickling raised, or the result is not a processor.
    """
    check_python(payload)
    try:
        loaded = _ProcessorUnpickler(io.BytesIO(payload.data)).load()
        problem = _why_no_processor(loaded)
    except BaseException as error:  # the payload's code may raise anything, also SystemExit
        raise _failure("unpickling the payload raised", error) from error
    if problem:
        raise PayloadError(f"the payload is not a processor: {problem}")
    return loaded


def instantiate(factory: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Return `factory(*args, **keywords)`. Arguments in a functools.partial are copied, so that instances share none.

    Raises:
        PayloadError: its `__init__` raised, or takes other arguments.
    """
    try:
        own = copy.deepcopy(factory) if isinstance(factory, functools.partial) else factory
        return own(*args, **keywords)
    except BaseException as error:
        raise _failure(f"creating a {dialects.author_of(factory).__qualname__} raised", error) from error


def _why_no_processor(loaded: object) -> str:
    try:
        inner, dialect = dialects.recognise(loaded)
    except TypeError as error:
        return str(error)
    if dialect in dialects.OF_CLASSES and not isinstance(inner, type):
        return f"not a class, but a {type(inner).__qualname__}: {inner!r:.80}"
    return ""


class _ProcessorUnpickler(dill.Unpickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, ignore=True)
        # The globals of `__main__` for a payload that a plain dill made: a new dict, not this process's.
        self._main_namespace = {"__name__": "__main__"}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("__builtin__", "__main__"), ("__main__", "__dict__")):
            return self._main_namespace
        if (module, name) == ("importlib", "import_module"):
            return wire_names.import_module
        module = wire_names.present_module(module, name)
        ours = wire_names.class_of(module, name)
        if ours is not None:
            return ours
        try:
            found = super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            raise PayloadError(
                f"the payload refers to {module}.{name}, which is not here ({error}); {_advice(module)}",
                remote_traceback=_traceback_of(error),
            ) from error
        index = _CLASS_MAKERS.get((module, name))
        return found if index is None else _untracked(found, index)


def _untracked(make_class: Callable[..., Any], index: int) -> Callable[..., Any]:
    """Return cloudpickle's function without the id that it gives a class, its argument at this index.

    With an id, cloudpickle does not create a class that it has loaded before: it changes that one, which other requests
    may use.
    """
    return lambda *args: make_class(*args[:index], None, *args[index + 1 :])


def _advice(module: str) -> str:
    """Return what to do if a name of this module is not found."""
    if module.partition(".")[0] == "cloudpickle":
        return "it was made with cloudpickle: install cloudpickle on the server, in the environment of its workers"
    known = ", ".join(wire_names.names_in(module))
    return f"the names of that module here are {known}" if known else "install it on the server"


def _failure(what: str, error: BaseException) -> PayloadError:
    if isinstance(error, PayloadError) and error.code == PayloadError.INVALID:  # the payload's code may raise another
        return error
    summary = traceback.format_exception_only(error)[-1].strip()
    return PayloadError(f"{what} {summary}", remote_traceback=_traceback_of(error))


def _traceback_of(error: BaseException) -> str:
    trace = error.__traceback__ and error.__traceback__.tb_next  # skip the first frame, of this module
    return "".join(traceback.format_exception(type(error), error, trace))
