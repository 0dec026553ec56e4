"""Starts zygotes of workers from the server's process, the front door.

This module needs no torch: `logitport serve` starts the zygotes before it imports the rest.
"""

from __future__ import annotations

import socket
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from logitport.core import compiled
from logitport_sandbox import NotContained, SandboxError, launch
from logitport_sandbox.verification.assessment import contain
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.worker.shared_tokenizers import open_tokenizers

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Mapping, Sequence

    from logitport_server.config import ServerConfig


class StartedZygote(NamedTuple):
    """A zygote; its imports may still run.

    Attributes:
        control: the server's end of its control socket.
        process: the process, or bubblewrap around it.
        without: names of the sandbox layers that are left out.
        tokenizers: see `start_zygote`.
    """

    control: socket.socket
    process: subprocess.Popen[bytes]
    without: frozenset[str]
    tokenizers: Mapping[str, int] = MappingProxyType({})


def start_zygote(
    python: str,
    *,
    without: Collection[str],
    threads: int,
    devices: Sequence[str] = (),
    tokenizers: Mapping[str, int] = MappingProxyType({}),
) -> StartedZygote:
    """Start a zygote. It dies with the calling thread, which must live as long as the server.

    Args:
        python: path of the interpreter.
        without: names of the sandbox layers to leave out.
        threads: maximum number of threads of one worker.
        devices: device nodes for its workers.
        tokenizers: memory with the operator's tokenizers, see `open_tokenizers`.

    Raises:
        SandboxError: the interpreter cannot run workers.
        OSError: the process cannot be started.
    """
    control, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    named = [f"{name}={descriptor}" for name, descriptor in tokenizers.items()]
    try:
        with zygote_end:
            process = launch(
                python,
                ["-m", "logitport_server.worker", str(zygote_end.fileno()), *named],
                pass_fds=[zygote_end.fileno(), *tokenizers.values()],
                without=without,
                devices=devices,
                threads=threads // 2,  # for torch; the rest is for the processor's own threads
                environment=compiled.environment(),
            )
    except BaseException:
        control.close()
        raise
    return StartedZygote(control, process, frozenset(without), tokenizers)


def start_first_zygote(config: ServerConfig) -> StartedZygote | None:
    """Start the zygote of the server's own Python, if these options need workers and the machine contains them.

    Raises:
        StartupError: shipped processors must be refused on this machine.
        PayloadError: a tokenizer cannot be read.
    """
    if not config.has_workers:
        return None
    pythons = (sys.executable, *(option.split("=", 1)[1] for option in config.worker_python))
    try:
        without = contain(pythons, without=config.waived_layers, required=config.required_layers)
        tokenizers = open_tokenizers(config.tokenizer)
        return start_zygote(sys.executable, without=without, threads=config.worker_threads, tokenizers=tokenizers)
    except (SandboxError, OSError) as error:
        message = f"shipped processors cannot be isolated on this machine: {error}"
        if isinstance(error, NotContained):
            message += (
                "\n--isolation none runs them in the processes of their callers: only for code that you would run "
                "yourself"
            )
        raise StartupError(message) from error
