"""A machine that lacks a layer of the sandbox: shipped processors are refused, unless the operator names the layer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logitport_server.sandbox import LAYERS

COMMAND = str(Path(sys.executable).with_name("logitport"))
SERVE = [COMMAND, "serve", "--listen", "127.0.0.1:0", "--device", "cpu"]
# The folder of bwrap is not among these, so there is none.
ENVIRONMENT = {"PATH": "/nowhere"}


def test_shipped_processors_are_refused_and_it_is_told_how_to_go_on() -> None:
    command = [*SERVE, "--enable-custom-logit-processor"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=ENVIRONMENT)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "bubblewrap: there is no bwrap; install the package bubblewrap" in ended.stderr
    assert "--without-layer bubblewrap" in ended.stderr
    assert "--isolation none" in ended.stderr


@pytest.mark.parametrize("how", ["without the layer", "without isolation", "with built-ins alone"])
def test_a_server_starts_all_the_same(how: str) -> None:
    others = [layer.name for layer in LAYERS if layer.name != "bubblewrap" and layer.missing() is not None]
    waived = [part for name in ("bubblewrap", *others) for part in ("--without-layer", name)]
    options = {
        "without the layer": ["--enable-custom-logit-processor", *waived],
        "without isolation": ["--enable-custom-logit-processor", "--isolation", "none"],
        "with built-ins alone": [],
    }
    with subprocess.Popen(
        [*SERVE, *options[how]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("logitport listening on ")
        finally:
            server.kill()
