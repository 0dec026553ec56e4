"""From a processor to the string that ships it."""

from __future__ import annotations

import functools
import io
import json
import pickle

from logitport import dialects
from logitport.errors import PayloadNotPortable
from logitport.payload.envelope import seal
from logitport.payload.pickle_reader import read
from logitport.payload.pickler import ProcessorPickler
from logitport.payload.portability import top_level, travels_by_value
from logitport.payload.wire_names import names_in


def dumps(processor: object) -> str:
    """The processor as a string that logitport loads, and SGLang, if it is a class of SGLang's dialect.

    The same class gives the same string, in any process. It travels with whatever it uses of the client's own code:
    base classes, other classes, functions, constants (as they are now), imports. What the standard library, torch,
    numpy, logitport, the engines and other installed packages define travels by name. Annotations do not travel, nor
    the folder that a source file lies in.

    Args:
        processor: what `logitport.dialects` tells of. Of the dialects "edits" and "sglang" a class travels, or an
            instance of it that has no attributes.

    Raises:
        PayloadNotPortable: no processor, or something that it uses cannot travel; the message says what, where, and
            what to do.
    """
    root, dialect = _root(processor)
    author = dialects.author_of(root)
    name = author.__qualname__
    file = io.BytesIO()
    pickler = ProcessorPickler(file, author)
    try:
        pickler.dump(root)
    except PayloadNotPortable as error:
        raise PayloadNotPortable(f"{name} cannot be shipped because of {pickler.where}: {error.message}") from error
    except RecursionError as error:
        raise PayloadNotPortable(
            f"{name} cannot be shipped: what it uses is nested too deeply, at {pickler.where[-300:]}"
        ) from error
    except Exception as error:  # from pickle, dill, or any object's own __reduce__
        raise PayloadNotPortable(
            f"{name} cannot be shipped because of {pickler.where}: {type(error).__name__}: {error}; "
            "create it in __init__, which runs on the server"
        ) from error
    data = file.getvalue()
    for reference in read(data).globals:
        local = travels_by_value(reference.module, top_level(author.__module__))
        if local and reference.name not in names_in(reference.module):
            raise PayloadNotPortable(
                f"{name} cannot be shipped: it uses {reference.module}.{reference.name}, which no server has, and "
                "which is no plain Python class or function that could travel; install its package on the server"
            )
    return seal(data, name, dialect)


def refer(cls: type) -> str:
    """The class as a string that holds its name and no code: always the same, of some 150 characters.

    An old protocol of pickle, which every Python and every dill reads, and the same octets wherever they are made:
    SGLang puts the requests whose strings are equal into one call.
    """
    return json.dumps({"callable": pickle.dumps(cls, protocol=4).hex()})


def _root(processor: object) -> tuple[object, str]:
    """What is pickled, and its dialect: the class, where SGLang wants one; else the processor as it is.

    Raises:
        PayloadNotPortable: it is no processor, or more than its class would have to travel.
    """
    try:
        inner, dialect = dialects.recognise(processor)
    except TypeError as error:
        raise PayloadNotPortable(str(error)) from error
    author = dialects.author_of(inner)
    if missing := ", ".join(dialects.missing_methods(author)):
        raise PayloadNotPortable(f"{author.__qualname__} is abstract, no instance can be made of it: define {missing}")
    if dialect not in dialects.OF_CLASSES:
        return processor, dialect
    if isinstance(inner, functools.partial) and (inner.args or inner.keywords):
        raise PayloadNotPortable(
            f"a functools.partial of {author.__qualname__} has arguments, which would be lost: the class is shipped; "
            "pass them as the request's parameters"
        )
    attributes = [] if inner is author else _attributes(inner)
    if attributes:
        raise PayloadNotPortable(
            f"the {author.__qualname__} has attributes ({', '.join(attributes)}), which would be lost: a class is "
            "shipped, not an instance; ship the class, and pass its configuration as the request's parameters"
        )
    return author, dialect


def _attributes(instance: object) -> list[str]:
    slots = [slot for cls in type(instance).__mro__ for slot in vars(cls).get("__slots__", ())]
    return [*getattr(instance, "__dict__", ()), *(slot for slot in slots if hasattr(instance, slot))]
