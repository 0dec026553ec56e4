"""`buf lint` accepts the contract, by the rules of buf.yaml."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_buf_lint_passes() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which fetches buf")
    (package,) = re.findall(r"--package=(\S+)", (ROOT / "buf.yaml").read_text())

    done = subprocess.run(
        [npm, "exec", "--yes", f"--package={package}", "--", "buf", "lint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
