"""`logitport doctor`."""

from __future__ import annotations

import platform
import resource
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from logitport.core import compiled
from logitport.system.installation import has_torch, how_to_install
from logitport_sandbox import LAYERS, SandboxError, users
from logitport_sandbox.gpu_files import device_nodes
from logitport_sandbox.verification.assessment import assess
from logitport_server.cli.display import size
from logitport_server.config import ServerConfig
from logitport_server.config.sandbox import Layers
from logitport_server.front_door import cpu_regime, machine

if TYPE_CHECKING:
    from logitport_sandbox.verification.assessment import Assessment
    from logitport_server.front_door.machine import Need


class Doctor(Layers):
    """Show what this machine runs: its kernels, the layers of the sandbox, and every attempt inside real workers.

    Exits with status 1 where `logitport serve` would refuse shipped processors with the same options.
    """

    def run(self) -> None:
        console = Console()
        console.print(_machine())
        console.print(_kernels())
        needs = machine.needs(ServerConfig.model_validate({}))
        console.print(_principals(needs))
        for warning in filter(None, (need.warning for need in needs)):
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)
        try:
            assessment = assess(without=self.waived_layers, required=self.required_layers, use_cache=False)
        except (SandboxError, OSError) as error:
            sys.exit(f"logitport: serve refuses shipped processors here: {error}")
        console.print(_layers(assessment))
        console.print(_attempts(assessment))
        if (refusal := assessment.refusal()) is not None:
            sys.exit(f"logitport: serve refuses shipped processors here: {refusal}")
        for warning in assessment.warnings():
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)


def _machine() -> Table:
    from logitport_server.transports.local_socket import LOCAL_TRANSPORT_AVAILABLE

    torch, cuda = f"not installed; classes that read logits need it: {how_to_install('server', 'torch')}", "none"
    if has_torch():
        import torch as installed

        torch, gpus = installed.__version__, installed.cuda
        cuda = f"{gpus.device_count()} devices, CUDA {installed.version.cuda}" if gpus.is_available() else "none"
    table = Table("this machine", "", show_header=False)
    table.add_row("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    table.add_row("Python", f"{platform.python_version()}, {sys.executable}")
    table.add_row("core", compiled.describe())
    table.add_row("torch", escape(torch))
    table.add_row("CUDA", cuda)
    table.add_row("for authors with cuda", ", ".join(device_nodes()) or "no device node of a GPU")
    lacking = users.lacking()
    shared = f"the server's user: {lacking}"
    table.add_row("users of workers", shared if lacking else f"{users.WORKERS[0]} to {users.WORKERS[-1]}, one each")
    table.add_row("local transport", "yes" if LOCAL_TRANSPORT_AVAILABLE else "no: this system has no memfd_create")
    return table


def _principals(needs: list[Need]) -> Table:
    """Show what the kernel divides among the processes of principals, with the default limits of `serve`."""
    config = ServerConfig.model_validate({})
    limit = machine.process_limit(config, machine.memory_bytes())
    regime = cpu_regime.look()
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # `serve` raises the soft limit to it
    table = Table(
        "principals",
        Column("here", overflow="fold"),
        Column(f"{config.max_sessions} principals need", overflow="fold"),
    )
    table.add_row("CPU", regime.name, regime.description)
    table.add_row(
        "private memory of one",
        f"{size(limit)} at most",
        f"{size(machine.principal_bytes(config.session_limits))} for one; {size(config.max_sessions * limit)} if all "
        "took what they may",
    )
    for need in needs:
        has = "no limit" if need.has == sys.maxsize else f"{need.has} ({need.limit})"
        table.add_row(need.what, has, f"{need.needs}, with a session each")
    table.add_row(
        "open files of the server",
        "no limit" if files == resource.RLIM_INFINITY else f"{files} (ulimit -Hn)",
        "fewer connections are accepted if they are too few; serve logs the numbers",
    )
    return table


def _kernels() -> Table:
    from logitport import ops

    ops.configure()
    table = Table("platform", Column("runs", overflow="fold"), "why")
    for row in ops.list_implementations():
        table.add_row(*row)
    return table


def _layers(found: Assessment) -> Table:
    table = Table("layer", "here", Column("what it does", overflow="fold"), Column("what it needs", overflow="fold"))
    for layer in LAYERS:
        state = "waived" if layer.name in found.waived else "missing" if layer.name in found.missing else "active"
        table.add_row(layer.name, state, layer.does, found.missing.get(layer.name, ""))
    return table


def _attempts(found: Assessment) -> Table:
    table = Table("tried inside a worker", "stopped", Column("by, or what it got", overflow="fold"))
    for result in found.results:
        verdict = "yes" if result.stopped else "NO, AND SHOULD BE" if result in found.leaks else "no"
        table.add_row(result.what, verdict, result.how)
    return table
