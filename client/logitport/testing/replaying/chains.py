"""The chain of a recorded request, with new processors in place of recorded ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logitport.dialects import author_of
from logitport.errors import InvalidArgument, PayloadError
from logitport.payload import root_of
from logitport.recording.events import display_name, json_object
from logitport.request import ProcessorRef

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
        """The place in a chain that it takes; None if there is none, or more than one."""
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


def recorded_processor(recorded: RecordedProcessor, *, run_payloads: bool) -> ProcessorRef | str | None:
    """Return what runs a processor as recorded; None if that is not in the recording.

    Args:
        recorded: the processor.
        run_payloads: whether the code of the recording may run.

    Raises:
        PayloadError: it is code of the recording, which may not run.
    """
    if recorded.builtin:
        # Not the text alone, which could be a payload in a forged recording.
        return ProcessorRef("", (recorded.builtin,), builtin=True)
    if recorded.payload and not run_payloads:
        raise PayloadError(
            f"{display_name(recorded)} is code of the recording, which does not run by default: give a version of it, "
            "or, if you trust the recording, --run-payloads (run_payloads=True); the code then runs in this process, "
            "without a sandbox",
            code=PayloadError.NOT_ALLOWED,
        )
    return recorded.payload or None


def replaced_chain(
    chain: Sequence[RecordedProcessor], replacements: Sequence[Replacement], *, run_payloads: bool = False
) -> list[tuple[Any, Mapping[str, Any]]] | None:
    """Return the (processor, parameters) pairs; None if no replacement has a place in the chain.

    Args:
        chain: as recorded.
        replacements: the new versions.
        run_payloads: as for `recorded_processor`.

    Raises:
        PayloadError: as `recorded_processor`.
        InvalidArgument: a shipped processor of the chain is neither recorded nor replaced.
    """
    new: dict[int, Any] = {}
    for replacement in replacements:
        place = replacement.place_in(chain)
        if place is not None:
            new[place] = replacement.processor
    if not new:
        return None
    pairs: list[tuple[Any, Mapping[str, Any]]] = []
    for place, recorded in enumerate(chain):
        processor = new.get(place) or recorded_processor(recorded, run_payloads=run_payloads)
        if processor is None:
            name = display_name(recorded)
            raise InvalidArgument(
                f"the chain has {name}, which is not in the recording: record with payloads=True, or give a version of "
                f"it, too: --with {name}=FILE.py:CLASS"
            )
        pairs.append((processor, json_object(recorded.params)))
    return pairs


def _is_named(recorded: RecordedProcessor, name: str) -> bool:
    if name in (recorded.builtin, recorded.name, recorded.class_name):
        return True
    return len(name) >= 6 and recorded.digest.startswith(name)
