"""Where and how shipped processors run."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from logitport_sandbox.layers import LAYER_NAMES
from logitport_server.config.option import OptionGroup
from logitport_server.config.units import Seconds, Size
from logitport_server.config.values import LayerState, WorkerPython, check_unique_names
from logitport_session.resources.session_limits import SessionLimits


class Layers(OptionGroup):
    """Layers of the sandbox."""

    heading: ClassVar[str] = "Sandbox of shipped processors"

    layers: list[LayerState] = Field(
        default=[],
        description=f"NAME=off leaves a layer of the sandbox out ({', '.join(LAYER_NAMES)}); with NAME=required, "
        "shipped processors are refused without it, although the other layers stop every attempt",
    )

    @property
    def waived_layers(self) -> list[str]:
        """Layers to leave out."""
        return self._layers_with("off")

    @property
    def required_layers(self) -> list[str]:
        """Layers without which shipped processors are refused."""
        return self._layers_with("required")

    def _layers_with(self, state: str) -> list[str]:
        return [name for name, _, given in (each.partition("=") for each in self.layers) if given == state]

    @model_validator(mode="after")
    def _check_layers(self) -> Layers:
        check_unique_names("--layers", self.layers)
        return self


class Sandbox(Layers):
    """Workers of shipped processors."""

    isolation: Literal["process", "none"] = Field(
        "process",
        description="where shipped processors run: process (one sandboxed process for each author) or none (in the "
        "process of its caller's sessions, as the server's user: only for code that you would run yourself)",
    )
    worker_python: list[WorkerPython] = Field(
        default=[],
        description="VERSION=PATH of another Python, for processors shipped from that version, for example "
        "3.12=/opt/python3.12/bin/python; it needs logitport, and torch for processors that read logits",
    )
    max_workers: int = Field(
        64,
        ge=1,
        description="maximum number of worker processes, one for each author or tenant with processors in use; "
        "when all are in use, each calling principal has an equal share",
    )
    worker_memory_bytes: Size = Field(2 << 30, ge=64 << 20, description="maximum memory of one worker")
    worker_threads: int = Field(32, ge=4, description="maximum number of threads and processes of one worker")
    processor_timeout_seconds: Seconds = Field(
        SessionLimits.processor_timeout_seconds,
        gt=0,
        le=3600,
        description="deadline of all calls of shipped processors, and of programs, in one step",
    )
    load_timeout_seconds: Seconds = Field(
        SessionLimits.load_timeout_seconds,
        gt=0,
        le=3600,
        description="time limit of an admission: loading the processors of a request, checking parameters, starting",
    )
    quarantine_after: int = Field(
        3,
        ge=1,
        description="a shipped processor is quarantined for its caller when failures that end its worker, and slow "
        "calls, have taken this many times --processor-timeout-seconds within ten minutes",
    )

    @model_validator(mode="after")
    def _check_pythons(self) -> Sandbox:
        check_unique_names("--worker-python", self.worker_python)
        return self
