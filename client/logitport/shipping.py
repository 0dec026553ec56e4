"""Makes the string of a processor that is shipped: a program if it can be one, otherwise a pickle."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from logitport import dialects, payload, source_checks
from logitport.errors import NotCapturable
from logitport.programs.processor import TensorProcessor
from logitport.programs.program import Program

if TYPE_CHECKING:
    from logitport.payload import Parts

# Whether `Client.register` makes programs of classes that can be one. The tests set it to False: tracing takes seconds.
LIFTS = True

_LARGE = (
    "and a class with one of over 10,000 is not lifted: keep a tensor of what it needs, or derive from TensorProcessor"
)

logger = logging.getLogger(__name__)


class Shipped(NamedTuple):
    """A serialized processor.

    Attributes:
        serialized: the payload.
        not_lifted: why it is not a program; "" if it is one, or if that was not tried.
        changed: what has changed in the class since this payload was made; "" if nothing has.
        suspect: lines of the class that are probably mistakes, as messages.
    """

    serialized: str
    not_lifted: str = ""
    changed: str = ""
    suspect: tuple[str, ...] = ()


class _Made(NamedTuple):
    """The payload that was made of a class.

    Attributes:
        shipped: the payload.
        lift: whether a program was tried.
        parts: the state of the class at that time; None if it is not known.
    """

    shipped: Shipped
    lift: bool
    parts: Parts | None


# Caches the payload of a class, so that it is not made for each request; `reserialize` renews an entry.
_made: WeakKeyDictionary[type, _Made] = WeakKeyDictionary()


def serialize(processor: Any) -> str:
    """Serialize a processor to a string; a string is returned unchanged.

    A `TensorProcessor` becomes a program. One that cannot be captured is pickled, with a warning.

    Raises:
        PayloadNotPortable: it cannot be pickled.
    """
    cls = processor if isinstance(processor, type) else _tensor_processor(processor)
    if cls is None:
        return _unchanged(processor) or payload.dumps(processor)
    made = _made.get(cls)
    if made is None:
        made = _made[cls] = _made_for_chain(cls)
    return made.shipped.serialized


def reserialize(processor: Any, *, lift: bool, refresh: bool = False) -> Shipped:
    """Serialize like `serialize`, but make a program of it if it can be one. `serialize` then returns the same.

    A class that was serialized before, in the same way, gives the payload of that time. `Shipped.changed` says what
    has changed since.

    Args:
        processor: as for `serialize`.
        lift: whether to make a program of a processor of any dialect, if it can be one. False: pickle it, also a
            `TensorProcessor`.
        refresh: serialize a class in its present state in any case.

    Raises:
        NotCapturable: a `TensorProcessor` cannot be captured.
        PayloadNotPortable: it cannot be pickled.
    """
    if given := _unchanged(processor):
        return Shipped(given)
    lift = lift and (_tensor_processor(processor) is not None or not _reads_no_logits(processor))
    parts = _parts_of(processor)
    made = None if refresh or not isinstance(processor, type) else _made.get(processor)
    if made is not None and made.lift == lift and made.parts is not None and parts is not None:
        return made.shipped._replace(changed=parts.changed_since(made.parts))
    shipped = Shipped(payload.dumps(processor)) if not lift else _lifted(processor, parts)
    shipped = shipped._replace(suspect=(*shipped.suspect, *_suspect_lines(processor, shipped)))
    if isinstance(processor, type):
        _made[processor] = _Made(shipped, lift, parts)
    return shipped


def _suspect_lines(processor: Any, shipped: Shipped) -> list[str]:
    kinds = {source_checks.DISCARD}
    if not payload.holds_program(shipped.serialized):
        # Instances may keep state: a server sees that, and reports it when it is lost.
        kinds |= {source_checks.DRAW, *source_checks.SHARED}
    return [str(one) for one in source_checks.find(processor, kinds)]


def _parts_of(processor: Any) -> Parts | None:
    try:
        return payload.parts_of(processor)
    except Exception:  # noqa: BLE001 - from any object's __reduce__; `dumps` reports it, if it is called
        return None


def _unchanged(processor: Any) -> str:
    """The string of a processor that is a string or a program already; otherwise ""."""
    if isinstance(processor, Program):
        return payload.seal_program(processor.to_bytes(), processor.name)
    return processor if isinstance(processor, str) else ""


def _made_for_chain(cls: type) -> _Made:
    parts = _parts_of(cls)
    if issubclass(cls, TensorProcessor):
        try:
            return _Made(Shipped(_captured(cls)), lift=True, parts=parts)
        except NotCapturable as error:
            logger.warning("%s is shipped as code, not as a program: %s", cls.__qualname__, error.message)
    return _Made(Shipped(payload.dumps(cls)), lift=False, parts=parts)


def _lifted(processor: Any, parts: Parts | None) -> Shipped:
    """Make a program of the processor, or a pickle with the reason.

    Raises:
        NotCapturable: a `TensorProcessor` cannot be captured.
        PayloadNotPortable: another processor can be neither lifted nor pickled.
    """
    cls = _tensor_processor(processor)
    if cls is not None:
        return Shipped(_captured(cls))
    if isinstance(processor, TensorProcessor):
        return Shipped(payload.dumps(processor))
    if parts is not None and parts.large:  # before torch is imported, and copies are made for the comparison
        return Shipped(payload.dumps(processor), f"{parts.large}, {_LARGE}")
    try:
        from logitport.programs.capture import is_identity  # imports torch
        from logitport.programs.lift import lift

        program = lift(processor)
    except ImportError as error:
        return Shipped(payload.dumps(processor), f"it could not be lifted: {error}")
    except NotCapturable as error:
        return Shipped(payload.dumps(processor), error.message)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything on tensors without values
        return Shipped(payload.dumps(processor), f"it could not be lifted: {error!r}")
    name = dialects.author_of(processor).__qualname__
    suspect = (f"{name} returns the logits as they are",) if is_identity(program) else ()
    return Shipped(payload.seal_program(program.to_bytes(), name), suspect=suspect)


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
