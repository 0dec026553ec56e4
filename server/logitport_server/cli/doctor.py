"""`logitport doctor`."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

from pydantic import BaseModel
from rich.console import Console
from rich.table import Column, Table

from logitport_server.config import WITHOUT_LAYER, LayerName
from logitport_server.sandbox import LAYERS, SandboxError
from logitport_server.sandbox.attempts import ATTEMPTS
from logitport_server.sandbox.gpu import device_nodes
from logitport_server.sandbox.probe import ProbeResult, probe

if TYPE_CHECKING:
    from collections.abc import Mapping


class Doctor(BaseModel):
    """Tell what contains shipped processors on this machine, and try whether it does.

    Ends with status 1 if a layer that is not waived is missing, or does not stop what it should.
    """

    without_layer: list[LayerName] = WITHOUT_LAYER

    def cli_cmd(self) -> None:
        """Look, try, print."""
        console = Console()
        console.print(_machine())
        missing = {layer.name: reason for layer in LAYERS if (reason := layer.missing()) is not None}
        waived = frozenset(self.without_layer)
        console.print(_layers(missing, waived))
        absent = waived | missing.keys()
        try:
            outcomes = probe(without=absent)
        except SandboxError as error:
            sys.exit(f"logitport: {error}")
        active = frozenset(layer.name for layer in LAYERS) - absent
        failed = _leaks(outcomes, active)
        console.print(_attempts(outcomes, failed))
        if required := sorted(missing.keys() - waived):
            sys.exit(f"logitport: serve refuses shipped processors without {', '.join(required)}, unless it is waived")
        if failed:
            sys.exit(f"logitport: {len(failed)} attempts got through that should not have")


def _machine() -> Table:
    import torch

    from logitport_server.transports.local_socket import LOCAL_TRANSPORT_AVAILABLE

    cuda = f"{torch.cuda.device_count()} devices, CUDA {torch.version.cuda}" if torch.cuda.is_available() else "none"
    table = Table("this machine", "", show_header=False)
    table.add_row("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    table.add_row("Python", f"{platform.python_version()}, {sys.executable}")
    table.add_row("torch", torch.__version__)
    table.add_row("CUDA", cuda)
    table.add_row("for authors with cuda", ", ".join(device_nodes()) or "no device node of a GPU")
    table.add_row("local transport", "yes" if LOCAL_TRANSPORT_AVAILABLE else "no: this system has no memfd_create")
    return table


def _layers(missing: Mapping[str, str], waived: frozenset[str]) -> Table:
    table = Table("layer", "here", Column("what it does", overflow="fold"), Column("what it needs", overflow="fold"))
    for layer in LAYERS:
        state = "waived" if layer.name in waived else "missing" if layer.name in missing else "active"
        table.add_row(layer.name, state, layer.does, missing.get(layer.name, ""))
    return table


def _leaks(outcomes: list[ProbeResult], active: frozenset[str]) -> frozenset[str]:
    """The attempts that got through although the active layers should stop them."""
    to_be_stopped = {attempt.what for attempt in ATTEMPTS if any(enough <= active for enough in attempt.stopped_by)}
    return frozenset(outcome.what for outcome in outcomes if not outcome.stopped) & to_be_stopped


def _attempts(outcomes: list[ProbeResult], failed: frozenset[str]) -> Table:
    table = Table("tried inside a worker", "stopped", Column("by, or what it got", overflow="fold"))
    for outcome in outcomes:
        verdict = "yes" if outcome.stopped else "NO, AND SHOULD BE" if outcome.what in failed else "no"
        table.add_row(outcome.what, verdict, outcome.how)
    return table
