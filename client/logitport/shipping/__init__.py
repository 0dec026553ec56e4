"""Makes the string of a processor that is shipped: a program if it can be one, otherwise a pickle.

`request` describes one request, and `calls` makes the messages of calls, which have such strings.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import logitport_lint
from logitport import dialects, payload
from logitport.errors import NotCapturable
from logitport_programs.authoring.processor import TensorProcessor
from logitport_programs.program import Program

if TYPE_CHECKING:
    from logitport.payload import StateDigest

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
        suspect: lines of the class that are probably mistakes, as messages.
    """

    serialized: str
    not_lifted: str = ""
    suspect: tuple[str, ...] = ()


class _Made(NamedTuple):
    """The payload that was made of a class.

    Attributes:
        shipped: the payload.
        lift: whether the caller permitted a program. The payload is a pickle then, too, if it could not be one.
        digest: of the state of the class after the payload was made; None if the class cannot be pickled.
    """

    shipped: Shipped
    lift: bool
    digest: bytes | None


# The last payload of each class: to read the state of a class takes less time, and for a program far less.
_made: WeakKeyDictionary[type, _Made] = WeakKeyDictionary()


def serialize(processor: Any) -> str:
    """Serialize a processor to a string; a string is returned unchanged.

    A class that `reserialize` has made a program of becomes a program again, and so does a `TensorProcessor`. One that
    cannot be captured is pickled, with a warning. A program is made again only after a change of what a pickle of the
    class would contain, and never if the class cannot be pickled.

    Raises:
        PayloadError: it cannot be pickled.
    """
    cls = processor if isinstance(processor, type) else _tensor_processor(processor)
    if cls is None:
        return _unchanged(processor) or payload.dumps(processor)
    made, state = _made.get(cls), _state_of(cls)
    if made is not None and made.digest == _digest(state):
        serialized = made.shipped.serialized
        if state is not None or payload.holds_program(serialized):
            return serialized
    lift = issubclass(cls, TensorProcessor) if made is None else made.lift
    try:
        return _make(cls, state, lift=lift).serialized
    except NotCapturable as error:
        logger.warning("%s is shipped as code, not as a program: %s", cls.__qualname__, error.message)
        return _keep(cls, Shipped(payload.dumps(cls)), lift=lift).serialized


def reserialize(processor: Any, *, lift: bool) -> Shipped:
    """Serialize the present state of a processor; make a program of it if it can be one.

    `serialize` then makes the same of a class. What can be a program is always traced again: the result depends on
    values that a pickle refers to by name, such as attributes of installed modules.

    Args:
        processor: as for `serialize`.
        lift: whether to make a program of a processor of any dialect, if it can be one. False: pickle it, also a
            `TensorProcessor`.

    Raises:
        NotCapturable: a `TensorProcessor` cannot be captured.
        PayloadError: it cannot be pickled.
    """
    if given := _unchanged(processor):
        return Shipped(given)
    tensor_processor = _tensor_processor(processor)
    lift = lift and (tensor_processor is not None or not _reads_no_logits(processor))
    state = _state_of(processor)
    made = _made.get(processor) if isinstance(processor, type) else None
    if made is not None and state is not None and (made.lift, made.digest) == (lift, state.digest):
        traces = lift and (tensor_processor is not None or not state.large)
        if not traces:
            return made.shipped
    return _make(processor, state, lift=lift)


def _make(processor: Any, state: StateDigest | None, *, lift: bool) -> Shipped:
    shipped = Shipped(payload.dumps(processor)) if not lift else _lifted(processor, state)
    return _keep(processor, shipped, lift=lift)


def _keep(processor: Any, shipped: Shipped, *, lift: bool) -> Shipped:
    """Add the suspect lines to what was made of a processor; keep it if that is a class."""
    shipped = shipped._replace(suspect=(*shipped.suspect, *_suspect_lines(processor, shipped)))
    if isinstance(processor, type):
        # The state is read again: the author's code has run, and may have filled a cache in a global.
        _made[processor] = _Made(shipped, lift, _digest(_state_of(processor)))
    return shipped


def _suspect_lines(processor: Any, shipped: Shipped) -> list[str]:
    kinds = {logitport_lint.DISCARD}
    if not payload.holds_program(shipped.serialized):
        # Instances may keep state: a server sees that, and reports it when it is lost.
        kinds |= {logitport_lint.DRAW, *logitport_lint.SHARED}
    return [str(one) for one in logitport_lint.find(processor, kinds)]


def _state_of(processor: Any) -> StateDigest | None:
    try:
        return payload.state_of(processor)
    except Exception:  # noqa: BLE001 - from any object's __reduce__; `dumps` reports it, if it is called
        return None


def _digest(state: StateDigest | None) -> bytes | None:
    return None if state is None else state.digest


def _unchanged(processor: Any) -> str:
    """The string of a processor that is a string or a program already; otherwise ""."""
    if isinstance(processor, Program):
        return payload.seal_program(processor.to_bytes(), processor.name)
    return processor if isinstance(processor, str) else ""


def _lifted(processor: Any, state: StateDigest | None) -> Shipped:
    """Make a program of the processor, or a pickle with the reason.

    Raises:
        NotCapturable: a `TensorProcessor` cannot be captured.
        PayloadError: another processor can be neither lifted nor pickled.
    """
    cls = _tensor_processor(processor)
    if cls is not None:
        from logitport_programs.capturing import capture  # imports torch

        return Shipped(payload.seal_program(capture(cls).to_bytes(), cls.__qualname__))
    if isinstance(processor, TensorProcessor):
        return Shipped(payload.dumps(processor))
    if state is not None and state.large:  # before torch is imported, and copies are made for the comparison
        return Shipped(payload.dumps(processor), f"{state.large}, {_LARGE}")
    try:
        from logitport_programs.capturing import is_identity  # imports torch
        from logitport_programs.lifting import lift

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
