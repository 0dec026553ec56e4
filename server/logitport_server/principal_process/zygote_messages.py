"""The messages between the front door and the zygote of principals' processes."""

from __future__ import annotations

from logitport_server.principal_process.message import Message
from logitport_server.principal_process.setup import Setup
from logitport_server.principal_process.worker_messages import WorkerSettings


class Prepare(Message):
    """Import what the processes need. The answer is `Prepared` or `Refused`."""

    setup: Setup


class Prepared(Message):
    """Processes can be forked.

    Attributes:
        device: torch's name of the device for logits.
        installed: a serialized `registry_pb2.ProcessorInfo` of each built-in and installed processor.
    """

    device: str
    installed: list[bytes]


class Refused(Message):
    """The setup cannot be used.

    Attributes:
        reason: for the operator.
    """

    reason: str


class ForkProcess(Message):
    """Fork a process. The channel's end and the reading end of the lifeline come with the message.

    Attributes:
        number: of the process.
        principal: name of the principal.
        workers: how the process runs shipped processors.
    """

    number: int
    principal: str
    workers: WorkerSettings


class ProcessForked(Message):
    """A process was forked. Its pidfd comes with the message."""

    number: int
    process_id: int


class ProcessForkFailed(Message):
    """No process was forked.

    Attributes:
        reason: of the kernel.
        error_number: of the system call; 0 if none has failed.
    """

    number: int
    reason: str
    error_number: int


class ProcessEnded(Message):
    """A process has ended.

    Attributes:
        status: its exit status, negative for a signal.
    """

    number: int
    status: int


TO_ZYGOTE = (Prepare, ForkProcess)
FROM_ZYGOTE = (Prepared, Refused, ProcessForked, ProcessForkFailed, ProcessEnded)
