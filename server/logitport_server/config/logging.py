"""The server's log and traces."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from logitport_server import logs
from logitport_server.config.option import Metavar, OptionGroup
from logitport_server.logs import LogFormat


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class Logging(OptionGroup):
    """Options of logs and traces."""

    heading: ClassVar[str] = "Logging and traces"

    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="minimum level of logged messages"
    )
    log_format: LogFormat = Field(
        "text", description="how the log is written: text, or json with one object a line and the fields of events"
    )

    traces: Literal["off", "otlp"] = Field(
        "off",
        description="export traces by OpenTelemetry's protocol, to the collector that its own variables name "
        "(OTEL_EXPORTER_OTLP_ENDPOINT and others)",
    )
    trace_steps: Annotated[float, Metavar("RATIO")] = Field(
        0.001, ge=0, le=1, description="part of the steps that have spans, from 0 to 1; other spans are not affected"
    )

    def start_logging(self) -> None:
        """Log to stderr, unless the program has configured logging itself."""
        logs.configure(self.log_level, self.log_format)
