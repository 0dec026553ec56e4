"""In the server: starts a preloaded parent inside the outer layer."""

from __future__ import annotations

import os
import subprocess
from types import MappingProxyType
from typing import TYPE_CHECKING

from logitport_sandbox import gpu_files, users
from logitport_sandbox.interpreter import readable_paths
from logitport_sandbox.layers import LAYERS
from logitport_sandbox.layers.seccomp import compile_filter
from logitport_sandbox.plan import SandboxPlan, WorkerLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A worker's environment. numpy's BLAS gets one thread: otherwise it would start threads before the fork.
_ENVIRONMENT = {
    "PATH": "",
    "HOME": "/tmp",  # noqa: S108 - the worker's own
    "TMPDIR": "/tmp",  # noqa: S108
    "USER": "nobody",
    "LANG": "C.UTF-8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",  # its threads would be lost at the fork
}


def launch(
    python: str,
    arguments: Sequence[str],
    *,
    pass_fds: Sequence[int] = (),
    without: Iterable[str] = (),
    devices: Sequence[str] = (),
    threads: int = WorkerLimits().threads // 2,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start `python -I -B ARGUMENTS` as the preloaded parent of workers, inside the outer layer.

    That process creates a `WorkerForker`, which forks the workers. It dies with the calling thread, so that no parent
    remains when a server is killed: call this from a thread that lives as long as the server.

    Args:
        python: the interpreter, with logitport and the extra `server` installed.
        arguments: such as `["-m", "a.module"]`.
        pass_fds: descriptors that it inherits, under the same numbers.
        without: names of the layers to leave out.
        devices: device nodes that workers may use, such as /dev/nvidia0. With any, workers also have the files that
            the driver of a GPU needs.
        threads: maximum number of threads that torch uses for one operation. It must be below the worker's limit on
            threads, because OpenMP ends a process if it cannot start one.
        environment: variables besides those that every worker has.

    Raises SandboxError if the interpreter cannot run workers, OSError if it cannot be started.
    """
    waived = frozenset(without)
    filtered = b""
    if "seccomp" not in waived:
        alone = "namespaces" not in waived and not devices
        filtered = compile_filter(in_pid_namespace=alone, devices=bool(devices))
    readable, variables = readable_paths(python), _ENVIRONMENT | dict(environment)
    if devices:
        readable, variables = (*readable, *gpu_files.readable_paths()), variables | gpu_files.environment()
    plan = SandboxPlan(waived, readable, tuple(devices), filtered, own_users=users.lacking() is None)
    command = [python, "-I", "-B", *arguments]
    for layer in LAYERS:
        if layer.name not in waived:
            command = layer.wrap(command, plan)
    return subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        env=variables | {"OMP_NUM_THREADS": str(min(threads, os.cpu_count() or 1))} | plan.environment(),
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
