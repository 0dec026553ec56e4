"""The layers of the sandbox on this kernel, as root and as an unprivileged user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CODE = """
import json
from logitport_sandbox.verification.assessment import assess
found = assess(use_cache=False)
leaks = [result.what for result in found.leaks]
print(json.dumps([sorted(found.missing), leaks, len(found.results), found.refusal()]))
"""


def test_every_attempt_is_stopped(record_property: Callable[[str, object], None]) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    missing, leaks, tried, refusal = json.loads(done.stdout)
    record_property("user", "root" if os.geteuid() == 0 else "unprivileged")
    record_property("missing", missing)
    record_property("attempts", tried)
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    assert missing == (["landlock"] if release < (5, 13) else [])
    assert (leaks, refusal) == ([], None)
