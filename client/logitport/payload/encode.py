"""From a class to the string that ships it."""

from __future__ import annotations

import inspect
import io
import sys

from logitport.errors import PayloadNotPortable
from logitport.payload.conformance import why_no_processor
from logitport.payload.envelope import seal
from logitport.payload.pickle_reader import read
from logitport.payload.pickler import ProcessorPickler
from logitport.payload.portability import top_level, travels_by_value
from logitport.payload.wire_names import names_in


def dumps(processor: type | object) -> str:
    """The class as a string that logitport and SGLang load. The same class gives the same string, in any process.

    The class travels with whatever it uses of the client's own code: base classes, other classes, functions,
    constants (as they are now), imports. What the standard library, torch, numpy, logitport and other installed
    packages define travels by name. Annotations do not travel, nor the folder that a source file lies in.

    Args:
        processor: the class, or an instance of it that has no attributes.

    Raises:
        PayloadNotPortable: not a processor class, or something that it uses cannot travel; the message says what,
            where, and what to do.
    """
    cls = _class_of(processor)
    name = cls.__qualname__
    file = io.BytesIO()
    pickler = ProcessorPickler(file, cls)
    try:
        pickler.dump(cls)
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
        local = travels_by_value(reference.module, top_level(cls.__module__))
        if local and reference.name not in names_in(reference.module):
            raise PayloadNotPortable(
                f"{name} cannot be shipped: it uses {reference.module}.{reference.name}, which no server has, and "
                "which is no plain Python class or function that could travel; install its package on the server"
            )
    return seal(data)


def _class_of(processor: type | object) -> type:
    cls = processor if isinstance(processor, type) else type(processor)
    if cls is not processor and top_level(cls.__module__) in sys.stdlib_module_names:
        raise PayloadNotPortable(
            f"a {cls.__qualname__} is no processor: define a class with __call__(self, logits, custom_param_list)"
        )
    problem = why_no_processor(cls)
    if problem:
        raise PayloadNotPortable(problem)
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise PayloadNotPortable(f"{cls.__qualname__} is abstract, no instance can be made of it: define {missing}")
    attributes = [] if cls is processor else _attributes(processor)
    if attributes:
        raise PayloadNotPortable(
            f"the {cls.__qualname__} has attributes ({', '.join(attributes)}), which would be lost: a class is "
            "shipped, not an instance; ship the class, and pass its configuration as the request's parameters"
        )
    return cls


def _attributes(instance: object) -> list[str]:
    slots = [slot for cls in type(instance).__mro__ for slot in vars(cls).get("__slots__", ())]
    return [*getattr(instance, "__dict__", ()), *(slot for slot in slots if hasattr(instance, slot))]
