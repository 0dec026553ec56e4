"""The example of TRL's trainer: the ratio of the trainer's and the engine's probabilities."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("trl", reason="`make test-trl` runs it with TRL")


@pytest.mark.slow
def test_the_ratio_is_one_with_the_replay() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_grpo.py")],
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
        env={**environment, "TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    found = {
        name: (float(ratio), float(outside))
        for name, ratio, outside in re.findall(r"(.*): mean ratio (\S+), ids outside \[0.9, 1.1\]: (\S+)%", done.stdout)
    }
    assert found["without"][1] > 50
    assert found["with the replay"] == (pytest.approx(1, abs=1e-3), 0)
