"""Output of processors in workers, as the SDK shows it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_proto import common_pb2


@dataclass(frozen=True)
class ProcessorOutput:
    """Output of a processor in a worker during one call. `str` escapes its control characters.

    Attributes:
        processor: digest of the processor.
        display_name: its class and the beginning of its digest.
        text: as the processor wrote it, at most 4,096 characters: the begin and the end of a longer one.
        time: when the server received it, in seconds since the Unix epoch.
    """

    processor: str
    display_name: str
    text: str
    time: float

    def __str__(self) -> str:
        at = datetime.datetime.fromtimestamp(self.time).strftime("%H:%M:%S.%f")[:-3]
        return f"{at} {escaped(self.display_name or self.processor)}\n{escaped(self.text).rstrip()}"

    @classmethod
    def all_from_proto(cls, outputs: Iterable[common_pb2.ProcessorOutput]) -> tuple[ProcessorOutput, ...]:
        """Convert messages, in their order."""
        return tuple(cls(each.processor, each.display_name, each.text, each.time) for each in outputs)


def escaped(text: str) -> str:
    r"""Return the text for a terminal: characters that cannot be printed, except \n and \t, as their escapes."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )
