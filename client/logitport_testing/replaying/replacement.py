"""The chain of a recorded request, with new processors in place of recorded ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logitport.dialects import author_of
from logitport.errors import InvalidArgument, PayloadError
from logitport.payload import root_of
from logitport.shipping.request import ProcessorRef
from logitport_recording.reading.event_fields import display_name, json_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_proto.recording_pb2 import RecordedProcessor


@dataclass(frozen=True)
class Replacement:
    """A new version of a processor.

    Attributes:
        processor: as in `Request.processors`.
        replaces: the recorded processor: its class, its registered or installed name, or the beginning of its digest.
            "" for the one with the same class name, or else the only shipped one.
    """

    processor: Any
    replaces: str = ""

    @property
    def class_name(self) -> str:
        """The name of its class or function; "" if it is given by a name."""
        if isinstance(self.processor, str):
            return ""
        name: str = author_of(root_of(self.processor)[0]).__qualname__
        return name.rpartition(".<locals>.")[2]

    def place_in(self, chain: Sequence[RecordedProcessor]) -> int | None:
        """The only place in a chain that it can take, or None."""
        if self.replaces:
            places = [place for place, one in enumerate(chain) if _is_named(one, self.replaces)]
            return places[0] if len(places) == 1 else None
        same = [place for place, one in enumerate(chain) if one.class_name and one.class_name == self.class_name]
        shipped = [place for place, one in enumerate(chain) if not one.builtin]
        places = same or shipped
        return places[0] if len(places) == 1 else None


def named_replacements(
    replacements: Sequence[Replacement], chains: Sequence[Sequence[RecordedProcessor]]
) -> list[Replacement]:
    """Return the replacements with the class that each replaces, if a chain has it.

    Raises:
        InvalidArgument: no chain has its class, and it would take the places of several processors.
    """
    named = []
    for one in replacements:
        name = one.class_name
        if not one.replaces and any(recorded.class_name == name for chain in chains for recorded in chain):
            named.append(replace(one, replaces=name))
            continue
        places = [] if one.replaces else [(chain, one.place_in(chain)) for chain in chains]
        others = sorted({display_name(chain[place]) for chain, place in places if place is not None})
        if len(others) > 1:
            raise InvalidArgument(
                f"{name} would replace several processors ({', '.join(others)}); name the one that it replaces, as in "
                "--with NAME=FILE.py:CLASS"
            )
        named.append(one)
    return named


def replaced_chain(
    chain: Sequence[RecordedProcessor], replacements: Sequence[Replacement], *, run_payloads: bool = False
) -> list[tuple[Any, Mapping[str, Any]]] | None:
    """Return the pairs as `chain_of`, which it calls; None if no replacement has a place in the chain."""
    places = ((replacement.place_in(chain), replacement.processor) for replacement in replacements)
    new = {place: processor for place, processor in places if place is not None}
    return chain_of(chain, new, run_payloads=run_payloads) if new else None


def chain_of(
    chain: Sequence[RecordedProcessor], new: Mapping[int, Any], *, run_payloads: bool
) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the (processor, parameters) pairs of a chain, with new processors by place.

    Raises:
        PayloadError: a processor that is not replaced is code of the recording, and `run_payloads` is false.
        InvalidArgument: such a processor is not in the recording.
    """
    return [
        (new.get(place) or _recorded_processor(recorded, run_payloads=run_payloads), json_object(recorded.params))
        for place, recorded in enumerate(chain)
    ]


def _recorded_processor(recorded: RecordedProcessor, *, run_payloads: bool) -> ProcessorRef | str:
    if recorded.builtin:
        # Not the text alone, which could be a payload in a forged recording.
        return ProcessorRef("", (recorded.builtin,), builtin=True)
    name = display_name(recorded)
    if not recorded.payload:
        raise InvalidArgument(
            f"{name} is not in the recording: choose a version of it, as in --with {name}=FILE.py:CLASS, or record "
            "with payloads=True"
        )
    if not run_payloads:
        raise PayloadError(
            f"{name} is code of the recording, which does not run by default: give a version of it, "
            "or, if you trust the recording, --run-payloads (run_payloads=True); the code then runs in this process, "
            "without a sandbox",
            code=PayloadError.NOT_ALLOWED,
        )
    return recorded.payload


def _is_named(recorded: RecordedProcessor, name: str) -> bool:
    if name in (recorded.builtin, recorded.name, recorded.class_name):
        return True
    return len(name) >= 6 and recorded.digest.startswith(name)
