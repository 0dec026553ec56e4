"""Makes the string of a processor that is shipped: a program if it can be one, otherwise a pickle."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from logitport import payload
from logitport.errors import NotCapturable
from logitport.programs.processor import TensorProcessor
from logitport.programs.program import Program

logger = logging.getLogger(__name__)


class Shipped(NamedTuple):
    """A serialized processor.

    Attributes:
        serialized: the payload.
        not_lifted: why it is not a program; "" if it is one, or if that was not tried.
    """

    serialized: str
    not_lifted: str = ""


# Caches the payload of a class, so that it is not made for each request; `reserialize` renews an entry.
_serialized: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def serialize(processor: Any) -> str:
    """Serialize a processor to a string; a string is returned unchanged.

    A `TensorProcessor` becomes a program. One that cannot be captured is pickled, with a warning.

    Raises:
        PayloadNotPortable: it cannot be pickled.
    """
    if isinstance(processor, type):
        return _serialized.get(processor) or _remembered(processor, _of_tensor_processor(processor))
    return _unchanged(processor) or _of_tensor_processor(processor)


def reserialize(processor: Any, *, lift: bool) -> Shipped:
    """Serialize like `serialize`, but a class again, in its present state, and keep that for `serialize`.

    Args:
        processor: as for `serialize`.
        lift: whether to make a program of a processor that is no `TensorProcessor`, if it can be one. False: pickle
            a `TensorProcessor`, too.

    Raises:
        NotCapturable: a `TensorProcessor` cannot be captured.
        PayloadNotPortable: it cannot be pickled.
    """
    if given := _unchanged(processor):
        return Shipped(given)
    shipped = Shipped(payload.dumps(processor)) if not lift else _lifted(processor)
    if isinstance(processor, type):
        _remembered(processor, shipped.serialized)
    return shipped


def _unchanged(processor: Any) -> str:
    """The string of a processor that is a string or a program already; otherwise ""."""
    if isinstance(processor, Program):
        return payload.seal_program(processor.to_bytes(), processor.name)
    return processor if isinstance(processor, str) else ""


def _remembered(processor: type, serialized: str) -> str:
    _serialized[processor] = serialized
    return serialized


def _of_tensor_processor(processor: Any) -> str:
    cls = _tensor_processor(processor)
    if cls is not None:
        try:
            return _captured(cls)
        except NotCapturable as error:
            logger.warning("%s is shipped as code, not as a program: %s", cls.__qualname__, error.message)
    return payload.dumps(processor)


def _lifted(processor: Any) -> Shipped:
    cls = _tensor_processor(processor)
    if cls is not None:
        return Shipped(_captured(cls))
    return Shipped(payload.dumps(processor))


def _captured(cls: type[TensorProcessor]) -> str:
    from logitport.programs.capture import capture  # imports torch

    program = capture(cls)
    return payload.seal_program(program.to_bytes(), cls.__qualname__)


def _tensor_processor(processor: Any) -> type[TensorProcessor] | None:
    """The class of a TensorProcessor; None for another processor, and for an instance with attributes."""
    if isinstance(processor, TensorProcessor) and not vars(processor):
        return type(processor)
    return processor if isinstance(processor, type) and issubclass(processor, TensorProcessor) else None
