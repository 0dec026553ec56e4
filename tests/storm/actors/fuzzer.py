"""A fuzzer: sends changed messages to the decoders, the compiled core and the programs of its own process."""

from __future__ import annotations

import logging
import os
import resource
import time
import traceback
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.storm.actors.base import Actor

if TYPE_CHECKING:
    from tests.storm.script import Event

# Messages of an event: as many as take about 0.3 s.
_COUNTS = {
    "frames": 500, "served_steps": 30, "serialized_payload": 7000, "pickle": 3000, "edits": 4000,
    "session_replies": 500, "worker_reply": 200, "program": 500, "drawn_program": 30, "state": 1,
}  # fmt: skip
# Of `tests.storm.fuzzing.targets`, which is not imported by actors that do not fuzz.
TARGETS = tuple(_COUNTS)
_MAX_BYTES = 4 << 30  # a message that is announced with this size must not be allocated
_SHOWN_BYTES = 4000
_NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63, 2**64 - 1)
_DRAWN_BYTES = 4000


class Fuzzer(Actor):
    """Needs no server."""

    kind = "fuzzer"

    @staticmethod
    def draw(random: Random, seconds: float, **given: Any) -> list[Event]:
        at, events = 0.0, []
        while (at := round(at + random.expovariate(1), 3)) < seconds:
            event = {"at": at, "do": "fuzz", "target": random.choice(TARGETS), "seed": random.randrange(1 << 30)}
            events.append(event | {"count": _COUNTS[event["target"]]})
        return events

    def run(self, events: list[Event], begun: float) -> None:
        """Run events, and leave the processor to the other actors first."""
        os.nice(10)
        logging.disable()
        pages = int(Path("/proc/self/statm").read_text().split()[5])  # a sanitizer has terabytes
        limit = pages * resource.getpagesize() + _MAX_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        super().run(events, begun)

    def fuzz(self, event: Event) -> None:
        """Send messages to a target. An input that breaks it is in the record."""
        from tests.storm.fuzzing.targets import TARGETS

        for number in range(event["count"]):
            if time.monotonic() > self.setting.until:  # a sanitizer is slow
                return
            data = message(event["target"], Random(f"{event['seed']} {number}"))
            try:
                TARGETS[event["target"]](data)
            except Exception as error:  # noqa: BLE001 - any exception is a finding
                detail = f"{traceback.format_exc()[-2000:]}\n{data.hex()[: 2 * _SHOWN_BYTES]}"
                self.records.add("exception", error=f"{event['target']} {type(error).__name__}", detail=detail)
            self.count[f"messages to {event['target']}"] += 1


def message(target: str, random: Random) -> bytes:
    """A valid message of a target with some changes, or random bytes."""
    if target == "drawn_program":
        return random.randbytes(_DRAWN_BYTES)
    if random.random() < 0.1:
        return random.randbytes(random.randrange(200))
    data = bytearray(random.choice(_corpora()[target]))
    for _ in range(random.choice([1, 1, 2, 6])):
        _change(data, random)
    return bytes(data)


def _change(data: bytearray, random: Random) -> None:
    at, length = random.randrange(len(data) + 1), random.randint(1, 64)
    kind = random.randrange(6)
    if kind == 0:
        data[at : at + 1] = random.randbytes(1)
    elif kind == 1:
        data[at:at] = random.randbytes(random.randint(1, 8))
    elif kind == 2:
        del data[at : at + length]
    elif kind == 3:
        data[at:at] = data[at : at + length]
    elif kind == 4 and at < len(data):
        data[at] ^= 1 << random.randrange(8)
    else:
        number = random.choice(_NUMBERS)
        width = 4 if -(2**31) <= number < 2**32 else 8
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")


@cache
def _corpora() -> dict[str, list[bytes]]:
    from tests.storm.fuzzing import seeds

    return seeds.corpora()
