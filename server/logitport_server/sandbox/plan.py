"""What the walls are made from: told once by the server, and the same for all workers of one preloaded parent."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass

_VARIABLE = "LOGITPORT_SANDBOX"


class SandboxError(Exception):
    """A wall could not be put up; the message says which, and what it needs."""


class NotContained(SandboxError):
    """This machine does not contain shipped processors."""


@dataclass(frozen=True)
class Limits:
    """What one worker may use.

    Attributes:
        memory_bytes: memory on top of what its parent had loaded.
        region_bytes: shared memory that it may map; not counted as its memory.
        temporary_bytes: its private temporary folder; held in memory, and the largest file that it may write.
        threads: threads at most, which bounds the CPUs that it can keep busy.
        open_files: file descriptors at most.
    """

    memory_bytes: int = 2 << 30
    region_bytes: int = 4 << 30
    temporary_bytes: int = 64 << 20
    threads: int = 32
    open_files: int = 128


@dataclass(frozen=True)
class Plan:
    """How workers are contained.

    Attributes:
        without: names of the layers to do without.
        readable: absolute paths of what Python and torch are made of.
        devices: device nodes that workers may use, such as /dev/nvidia0.
        system_calls: the seccomp filter, as BPF.
    """

    without: frozenset[str]
    readable: tuple[str, ...]
    devices: tuple[str, ...]
    system_calls: bytes

    def environment(self) -> dict[str, str]:
        """The variable that carries the plan to the preloaded parent."""
        fields = asdict(self) | {
            "without": sorted(self.without),
            "system_calls": base64.b64encode(self.system_calls).decode(),
        }
        return {_VARIABLE: json.dumps(fields)}

    @classmethod
    def received(cls) -> Plan:
        """The plan that the server gave to this process. Raises SandboxError if there is none."""
        try:
            fields = json.loads(os.environ.pop(_VARIABLE))
        except KeyError:
            raise SandboxError("this process was not started by logitport_server.sandbox.launch") from None
        return cls(
            frozenset(fields["without"]),
            tuple(fields["readable"]),
            tuple(fields["devices"]),
            base64.b64decode(fields["system_calls"]),
        )
