"""The parameters of the layers. The server sends them once; all workers of one preloaded parent share them."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass

_VARIABLE = "LOGITPORT_SANDBOX"


class SandboxError(Exception):
    """A layer could not be applied; the message says which one, and what it needs."""


class NotContained(SandboxError):
    """This machine does not contain shipped processors."""


@dataclass(frozen=True)
class WorkerLimits:
    """Resource limits of one worker.

    Attributes:
        memory_bytes: memory in addition to what its parent has loaded.
        region_bytes: shared memory that it may map; not part of `memory_bytes`.
        temporary_bytes: size of its private temporary folder, which is held in memory, and of the largest file
            that it may write.
        threads: maximum number of threads, which also limits how many CPUs it can keep busy.
        open_files: maximum number of file descriptors.
    """

    memory_bytes: int = 2 << 30
    region_bytes: int = 4 << 30
    temporary_bytes: int = 64 << 20
    threads: int = 32
    open_files: int = 128


@dataclass(frozen=True)
class SandboxPlan:
    """How workers are contained: the same for all workers of one preloaded parent.

    Attributes:
        without: names of the layers to leave out.
        readable: absolute paths of the files of Python and torch.
        devices: device nodes that workers may use, such as /dev/nvidia0.
        system_calls: the seccomp filter, as BPF.
        own_users: whether each worker gets a user of its own, because the server is root.
    """

    without: frozenset[str]
    readable: tuple[str, ...]
    devices: tuple[str, ...]
    system_calls: bytes
    own_users: bool = False

    def environment(self) -> dict[str, str]:
        """Return the environment variable that carries the plan to the preloaded parent."""
        fields = asdict(self) | {
            "without": sorted(self.without),
            "system_calls": base64.b64encode(self.system_calls).decode(),
        }
        return {_VARIABLE: json.dumps(fields)}

    @classmethod
    def received(cls) -> SandboxPlan:
        """Return the plan that the server sent to this process. Raises SandboxError if it has not arrived."""
        try:
            fields = json.loads(os.environ.pop(_VARIABLE))
        except KeyError:
            raise SandboxError("this process was not started by logitport_sandbox.launch") from None
        return cls(
            frozenset(fields["without"]),
            tuple(fields["readable"]),
            tuple(fields["devices"]),
            base64.b64decode(fields["system_calls"]),
            fields["own_users"],
        )
