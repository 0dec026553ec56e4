"""Output of processors in workers, which the front door keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.executors.output import MAX_TEXT_LENGTH, OutputLog
from logitport_server.principal_process.worker_messages import RecordOutput

if TYPE_CHECKING:
    from logitport_server.principal_process.link import Link


class ForwardedOutput(OutputLog):
    """Passes what processors print to the front door. `read` finds nothing here."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def add(self, principal: str, key: str, name: str, text: str) -> None:  # noqa: ARG002 - that of the process
        self._link.post(RecordOutput(processor=key, name=name, text=text[:MAX_TEXT_LENGTH]))
