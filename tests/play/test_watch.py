"""Stopping code of the user's files."""

from __future__ import annotations

import subprocess
import sys

# A process of its own: the calls below do not return if an exception is left that no thread takes.
_SCRIPT = """
import sys
from pathlib import Path
from logitport.errors import InvalidArgument
from logitport_play import watch

watch.LIMIT_SECONDS = watch.GRACE_SECONDS = 0.2
code = compile("import time\\ndef sleep():\\n    time.sleep(1000)\\n", "mine.py", "exec")
names = {}
exec(code, names)
try:
    watch.Watched(names["sleep"], ["mine.py"]).run()
except InvalidArgument as error:
    print(error)

def call():
    return 1

sys.setprofile(lambda *_: None)
print(sum(call() for _ in range(1000)))
"""


def test_code_that_cannot_be_stopped_leaves_the_interpreter_sound() -> None:
    """CPython 3.11 calls a profiled function again and again while an exception for another thread is not taken."""
    command = [sys.executable, "-c", _SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "sleep did not return" in ended.stdout, ended.stderr
    assert ended.stdout.splitlines()[-1] == "1000"
