"""Makes the string of a processor that is shipped: a program if it can be one, otherwise a pickle."""

from __future__ import annotations

import logging
import os
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from logitport import dialects, payload
from logitport.errors import InvalidArgument, NotCapturable
from logitport.programs.processor import TensorProcessor
from logitport.programs.program import Program

VARIABLE = "LOGITPORT_LIFT"

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
    cls = processor if isinstance(processor, type) else _tensor_processor(processor)
    if cls is not None:
        return _serialized.get(cls) or _remembered(cls, _of_tensor_processor(cls))
    return _unchanged(processor) or payload.dumps(processor)


def reserialize(processor: Any, *, lift: bool) -> Shipped:
    """Serialize like `serialize`, but a class again, in its present state, and keep that for `serialize`.

    Args:
        processor: as for `serialize`.
        lift: whether to make a program of a processor of any dialect, if it can be one. False: pickle it, also a
            `TensorProcessor`.

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


def lifts() -> bool:
    """Whether processors are lifted by default: LOGITPORT_LIFT, "on" or "off". Raises InvalidArgument."""
    value = os.environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        raise InvalidArgument(f"{VARIABLE} is {value!r}; write on or off")
    return value == "on"


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
    """Make a program of the processor, or a pickle with the reason.

    Raises:
        NotCapturable: a `TensorProcessor` cannot be captured.
        PayloadNotPortable: another processor can be neither lifted nor pickled.
    """
    cls = _tensor_processor(processor)
    if cls is not None:
        return Shipped(_captured(cls))
    if isinstance(processor, TensorProcessor) or _reads_no_logits(processor):
        return Shipped(payload.dumps(processor))
    try:
        from logitport.programs.lift import lift  # imports torch

        program = lift(processor)
    except ImportError as error:
        return Shipped(payload.dumps(processor), f"it could not be lifted: {error}")
    except NotCapturable as error:
        return Shipped(payload.dumps(processor), error.message)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything on tensors without values
        return Shipped(payload.dumps(processor), f"it could not be lifted: {error!r}")
    return Shipped(payload.seal_program(program.to_bytes(), dialects.author_of(processor).__qualname__))


def _captured(cls: type[TensorProcessor]) -> str:
    from logitport.programs.capture import capture  # imports torch

    program = capture(cls)
    return payload.seal_program(program.to_bytes(), cls.__qualname__)


def _tensor_processor(processor: Any) -> type[TensorProcessor] | None:
    """The class of a TensorProcessor; None for another processor, and for an instance with attributes."""
    if isinstance(processor, TensorProcessor) and not vars(processor):
        return type(processor)
    return processor if isinstance(processor, type) and issubclass(processor, TensorProcessor) else None


def _reads_no_logits(processor: Any) -> bool:
    """Whether it is an `EditProcessor`, or no processor: nothing to lift."""
    try:
        return dialects.recognise(processor)[1] == dialects.EDITS
    except TypeError:
        return True
