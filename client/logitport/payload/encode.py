"""Serializes a processor to a payload string."""

from __future__ import annotations

import functools
import io
import json
import pickle

from logitport import dialects
from logitport.errors import PayloadError
from logitport.payload.envelope import seal
from logitport.payload.pickle_reader import read
from logitport.payload.pickler import ProcessorPickler
from logitport.payload.portability import top_level, travels_by_value
from logitport.payload.source_lines import parts_of
from logitport.payload.wire_names import names_in


def dumps(processor: object) -> str:
    """Serialize a processor to a string that logitport loads. SGLang loads it, too, if it is a class of its dialect.

    The same class gives the same string in any process. The string includes everything that the processor uses of the
    client's own code: base classes, other classes, functions, imports, and constants with their present values. Names
    defined in the standard library, torch, numpy, logitport, the engines and other installed packages are referred to
    by name. Annotations and the folders of source files are not included. The source lines of
    the functions are, for tracebacks, where they can be read.

    Args:
        processor: any kind in `logitport.dialects`. In the dialects "edits" and "sglang" the class is shipped; an
            instance must have no attributes.

    Raises:
        PayloadError: it is not a processor, or something that it uses cannot be serialized; the message says
            what, where, and what to do.
    """
    root, dialect = root_of(processor)
    author = dialects.author_of(root)
    name = author.__qualname__
    file = io.BytesIO()
    pickler = ProcessorPickler(file, author)
    try:
        pickler.dump(root)
    except PayloadError as error:
        raise PayloadError(f"{name} cannot be shipped because of {pickler.where}: {error.message}") from error
    except RecursionError as error:
        raise PayloadError(
            f"{name} cannot be shipped: what it uses is nested too deeply, at {pickler.where[-300:]}"
        ) from error
    except Exception as error:  # from pickle, dill, or any object's own __reduce__
        raise PayloadError(
            f"{name} cannot be shipped because of {pickler.where}: {type(error).__name__}: {error}; "
            "create it in __init__, which runs in the sandbox of the server, without network and files"
        ) from error
    data = file.getvalue()
    for reference in read(data).globals:
        local = travels_by_value(reference.module, top_level(author.__module__))
        if local and reference.name not in names_in(reference.module):
            raise PayloadError(
                f"{name} cannot be shipped: it uses {reference.module}.{reference.name}, which no server has, and "
                "which is not a plain Python class or function that can be shipped; install its package on the server"
            )
    return seal(data, name, dialect, parts_of(pickler.codes))


def refer(cls: type) -> str:
    """Serialize a class to a string of about 150 characters that holds its name and no code.

    It uses an old protocol of pickle, which every Python and every dill reads. The string is the same on every machine,
    because SGLang puts requests with equal strings into one call.
    """
    return json.dumps({"callable": pickle.dumps(cls, protocol=4).hex()})


def root_of(processor: object) -> tuple[object, str]:
    """Return what is serialized of a processor, and its dialect: in dialects of classes the class, else the processor.

    Raises:
        PayloadError: it is not a processor, or an instance or partial with state, which the class alone lacks.
    """
    try:
        inner, dialect = dialects.recognise(processor)
    except TypeError as error:
        raise PayloadError(str(error)) from error
    author = dialects.author_of(inner)
    if missing := ", ".join(dialects.missing_methods(author)):
        raise PayloadError(f"{author.__qualname__} is abstract and cannot be instantiated: define {missing}")
    if dialect not in dialects.OF_CLASSES:
        return processor, dialect
    if isinstance(inner, functools.partial) and (inner.args or inner.keywords):
        raise PayloadError(
            f"a functools.partial of {author.__qualname__} has arguments, which would be lost: the class is shipped; "
            "pass them as the request's parameters"
        )
    attributes = [] if inner is author else _attributes(inner)
    if attributes:
        raise PayloadError(
            f"the {author.__qualname__} has attributes ({', '.join(attributes)}), which would be lost: a class is "
            "shipped, not an instance; ship the class, and pass its configuration as the request's parameters"
        )
    return author, dialect


def _attributes(instance: object) -> list[str]:
    slots = [slot for cls in type(instance).__mro__ for slot in vars(cls).get("__slots__", ())]
    return [*getattr(instance, "__dict__", ()), *(slot for slot in slots if hasattr(instance, slot))]
