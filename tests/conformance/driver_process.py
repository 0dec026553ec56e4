"""Drivers: a program for each client, which opens a session and executes commands.

A driver is started with the address of a server, or `embedded`. It reads a command from each line of its input, and
writes a line of JSON for each. Words of a command are separated by one space. LIST is ids separated by commas, and may
be empty. The logits of the n-th step, counted from 1, have ((13 n + 31 row + 17 id) % 101) / 8 - 4 in each row and id.

| command | output |
|---|---|
| `open VOCAB_SIZE MAX_DRAFT_TOKENS EOS_LIST TIMEOUT_SECONDS RECONNECT_SECONDS` | `{}` |
| `add NAME SKIPS PROMPT_LIST OUTPUT_LIST PROCESSOR=PARAMS...` | `{"reads_logits": bool}` |
| `step REQUEST... [rows NAME+OFFSET...]` | see below |
| `remove NAME...` | `{}` |
| `rewind NAME LENGTH` | `{}` |
| `length NAME` | `{"length": n}` |
| `stats` | `{"reconnects": n, "resyncs": n}` |
| `close` | `{}`, and the driver ends |

SKIPS is 0 or 1; PARAMS is JSON without spaces. REQUEST is NAME:NEW_LIST:DRAFT_LIST:PARENT_LIST; without parents, the
drafts are a chain.

`step` sends the step and applies it: `{"logits": [hexadecimal bytes of each row], "failures": {NAME: {"code": n,
"skipped": bool, "message": text}}, "all_denied_rows": [n], "applied": {PROCESSOR: rows}, "events": [[NAME, PROCESSOR,
POSITION, EVENT, VALUES]]}`. A command that fails writes `{"error": code, "message": text}`, with a code of
docs/protocol.md, or 100 for a server that cannot be reached or has not replied in time.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

UNAVAILABLE = 100


class Driver:
    """A running driver."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def execute(self, command: str) -> dict[str, Any]:
        """Write a command, and read its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the driver has ended at `{command}`"
        output: dict[str, Any] = json.loads(line)
        return output


@contextmanager
def running(command: Sequence[str], target: str, *, variables: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """Run a driver while the context lasts. It is ended after two minutes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    with subprocess.Popen(
        [*command, target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | dict(variables or {}),
    ) as process:
        timer = threading.Timer(120, process.kill)
        timer.start()
        try:
            yield Driver(process)
            assert process.wait() == 0
        finally:
            timer.cancel()
            process.kill()
