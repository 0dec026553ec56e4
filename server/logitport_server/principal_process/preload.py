"""What the zygote imports and reads before it forks, so that processes share it."""

from __future__ import annotations

import gc
import logging
import os
from typing import TYPE_CHECKING, Any

import logitport_builtins
from logitport import ops
from logitport.errors import InvalidArgument, LogitportError
from logitport.system.installation import has_torch, how_to_install
from logitport_server import logs
from logitport_server.principal_process.setup import Preloaded
from logitport_server.worker.malloc import keep_large_blocks
from logitport_server.worker.temporary_folder import choose_temporary_folder
from logitport_session.processor_sources import installed
from logitport_session.processor_sources.installed import Installed

if TYPE_CHECKING:
    from logitport_server.principal_process.setup import Setup

logger = logging.getLogger(__name__)


def preload(setup: Setup) -> Preloaded:
    """Import and read what processes need.

    Raises:
        InvalidArgument: an option, or the variable LOGITPORT_CUSTOM_OPS, cannot be used.
        LogitportError: a plugin of ops, a tokenizer or a processor cannot be used, or an installed program breaks a
            rule.
    """
    keep_large_blocks()
    choose_temporary_folder()
    logs.configure(setup.log_level, setup.log_format)
    _import()
    ops.check_variable()
    found = installed.load(setup.logits_processors, with_entry_points=setup.entry_points, given=_given(setup))
    processors = Installed(found).verify()
    logitport_builtins.configure(setup)
    device = _in_child(setup.device)
    _check_threads()
    gc.collect()
    gc.freeze()  # a collection in a process would write to, and so copy, the shared pages
    return Preloaded(device, processors)


def _given(setup: Setup) -> list[Any]:
    """Return the processors that a program passes. Raises InvalidArgument."""
    if not setup.processors:
        return []
    import dill  # type: ignore[import-untyped]  # after the folder for temporary files has been chosen

    try:
        given: list[Any] = dill.loads(setup.processors)  # noqa: S301 - the front door's own
    except Exception as error:
        raise InvalidArgument(
            "a processor that the program passes cannot be loaded in the process that forks sessions' processes: "
            f"{type(error).__name__}: {error}; make its module importable there, by an installed package or PYTHONPATH"
        ) from error
    return given


def _import() -> None:
    import logitport.payload.unpickle  # noqa: F401
    import logitport_session.shared_memory.regions  # noqa: F401

    if has_torch():
        import torch

        import logitport_programs.runtime.program_runner  # noqa: F401

        torch.zeros(1).half()  # reads the CPU's features


def _in_child(name: str) -> str:
    """Choose the device in a child: to look for GPUs begins CUDA, which no process can use that is forked afterwards.

    Raises InvalidArgument if there is no such device.
    """
    if name == "cpu":
        return name
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, _chosen(name).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        chosen = pipe.read().decode()
    os.waitpid(child, 0)
    kind, _, text = chosen.partition("=")
    if kind != "device":
        raise InvalidArgument(text or f"--device {name}: the devices of this machine cannot be listed")
    return text


def _chosen(name: str) -> str:
    if not has_torch():
        missing = f"error=--device {name} needs torch: install it, {how_to_install('server', 'torch')}; or use cpu"
        return "device=cpu" if name == "auto" else missing
    import torch

    if name == "auto":
        return "device=cuda" if torch.cuda.is_available() else "device=cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        return f"error=--device {name}: torch sees {torch.cuda.device_count()} CUDA devices; use auto or cpu"
    return f"device={name}"


def _check_threads() -> None:
    """Raise LogitportError if a module has started threads: a fork has none of them, but their locks."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise LogitportError(
            f"an installed processor, or a module that it imports, has started {threads - 1} threads at its import; "
            "the processes of principals are forked from the process that imports it: start threads at the first call"
        )
