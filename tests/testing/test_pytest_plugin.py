"""The fixture `logitport_server`, in a pytest of its own: a process or a thread, with options."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TEST = """
import threading

import numpy as np
import pytest

from logitport import Client, EditProcessor, LimitExceeded, Request


class Never(EditProcessor):
    def edit(self, request, edits):
        edits.deny([2])


@pytest.fixture(scope="session")
def logitport_server_options():
    return {"max_tokens_per_request": 2}


def test_a_step(logitport_server):
    with Client(logitport_server.target) as client:
        chain = [("disallowed_tokens", {"token_ids": [1]}), (Never, {})]
        logits = client.apply(np.zeros((1, 4), np.float32), [Request([1], processors=chain)]).logits
        assert np.isinf(logits[0]).tolist() == [False, True, True, False]


def test_the_options(logitport_server):
    with Client(logitport_server.target) as client:
        with pytest.raises(Exception, match="3 token ids in one request"):
            client.apply(np.zeros((1, 4), np.float32), [Request([1, 2, 3])])


def test_where_it_runs(logitport_server):
    assert any(thread.name == "logitport-server" for thread in threading.enumerate()) is IN_THREAD
"""


@pytest.mark.parametrize("place", ["process", "thread"])
def test_the_fixture(place: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nlogitport_server = {place}\nfilterwarnings = error\n")
    (tmp_path / "test_it.py").write_text(TEST.replace("IN_THREAD", str(place == "thread")))
    outcome = run_pytest(tmp_path)
    assert "3 passed" in outcome.stdout, outcome.stdout + outcome.stderr


def test_an_unknown_place(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nlogitport_server = moon\n")
    (tmp_path / "test_it.py").write_text("def test_it(logitport_server): pass")
    assert "the setting logitport_server is 'moon'; write process or thread" in run_pytest(tmp_path).stdout


def test_the_log_of_a_server_that_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def logitport_server_options(): return {'max_moons': 3}\n"
        "def test_it(logitport_server): pass\n"
    )
    outcome = run_pytest(tmp_path).stdout
    assert "ServerUnavailable: the server has not started" in outcome
    assert "max-moons" in outcome


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env={name: value for name, value in os.environ.items() if not name.startswith(("LOGITPORT_", "PYTEST_"))},
        check=False,
    )
