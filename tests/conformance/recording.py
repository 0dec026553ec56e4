"""Records a scenario: the SDK's driver, and a real session behind a server with faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.conversation_server import conversation_server
from tests.conformance.conversations import Conversation, Recording
from tests.conformance.driver_process import UNAVAILABLE, running
from tests.conformance.scenarios import Fault

if TYPE_CHECKING:
    from tests.conformance.scenarios import Scenario

PYTHON_DRIVER = [sys.executable, str(Path(__file__).parent / "drivers" / "driver.py")]


def record(scenario: Scenario) -> Conversation:
    """Make a conversation."""
    recording = Recording(scenario.opened)
    commands: list[str] = []
    outputs: list[dict[str, Any]] = []
    with (
        conversation_server(recording.connect, local=False) as server,
        running([*PYTHON_DRIVER, "grpc"], server.target) as driver,
    ):
        for each in scenario.commands:
            command = each.command if isinstance(each, Fault) else each
            recording.faults = dict(each.faults) if isinstance(each, Fault) else {}
            connection = max(0, len(recording.connections) - 1)
            item = len(recording.connections[connection]) if recording.connections else 0
            output = driver.execute(command)
            assert not recording.faults, f"{command}: {recording.faults} did not happen"
            if command.startswith("step") and "error" not in output:
                output["events"] = recording.events_since(connection, item)
            commands.append(command)
            outputs.append(_without_own_messages(output, recording))
    return Conversation(commands, outputs, recording.connections)


def _without_own_messages(output: dict[str, Any], recording: Recording) -> dict[str, Any]:
    """Leave out the texts of errors that the client has found itself: other clients have other words."""
    for error in [output, *output.get("failures", {}).values()]:
        if "message" in error and (UNAVAILABLE in error.values() or not recording.has_message(error["message"])):
            del error["message"]
    return output
