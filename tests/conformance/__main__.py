"""Record the conversations with the Python SDK: `python -m tests.conformance`."""

from __future__ import annotations

from tests.conformance.conversations import FOLDER
from tests.conformance.recording import record
from tests.conformance.scenarios import SCENARIOS

if __name__ == "__main__":
    for name, scenario in SCENARIOS.items():
        (FOLDER / f"{name}.json").write_text(record(scenario).text())
        print(name)
