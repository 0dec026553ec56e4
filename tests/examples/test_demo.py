"""Runs the demo as a user does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@contextmanager
def demo(**environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run the demo and its server in a separate process group; checks that no process of it is left."""
    options = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(DEMO)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**options, **environment},
        start_new_session=True,
    )
    try:
        with process:
            yield process
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(900)
def test_it_shows_every_effect_and_leaves_nothing_behind() -> None:
    with demo() as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert not errors
    assert "All four processors had the expected effect" in output
    for name in ("disallowed_tokens", "thinking_budget", "no_repeat_ngram", "Watermark"):
        assert name in output
    assert output.count("192 rows applied") == 4
    assert "</think>" in output
    assert max(map(len, output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOGITPORT_MAX_MESSAGE_BYTES": "1"}, "the server did not start: logitport: LOGITPORT_MAX_MESSAGE_BYTES"),
        ({"LOGITPORT_MAX_REQUESTS_PER_SESSION": "1"}, "slots are taken"),
    ],
)
def test_it_cleans_up_when_it_fails(environment: dict[str, str], message: str) -> None:
    with demo(**environment) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert message in errors
    assert "Traceback" not in errors


def test_it_cleans_up_when_it_is_interrupted() -> None:
    with demo() as process:
        assert process.stdout is not None
        assert "serves at" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert not errors
