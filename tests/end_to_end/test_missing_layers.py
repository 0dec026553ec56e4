"""On a machine without a sandbox layer, shipped processors are accepted only if the other layers stop all attacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from logitport_sandbox import LAYERS
from tests.missing_layers import without

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMAND = str(Path(sys.executable).with_name("logitport"))
SHIPPED = ["--listen", "127.0.0.1:0", "--device", "cpu", "--enable-custom-logit-processor"]
SECONDS = 200
LACKING = {layer.name: reason for layer in LAYERS if (reason := layer.missing()) is not None}

all_layers = pytest.mark.skipif(LACKING, reason=f"this machine lacks layers: {LACKING}")


class Attempt(NamedTuple):
    listening: bool
    log: str


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment variables without server options, and with an empty cache folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOGITPORT_")}
    return inherited | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200"}


def serve(missing: str, environment: dict[str, str], *options: str) -> Attempt:
    """Start a server and end it when it listens, or wait until it exits with an error."""
    command = without(missing, COMMAND, "serve", *SHIPPED, *options)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            listening = server.stdout.readline().startswith("logitport listening on ")
            server.terminate()
            _, log = server.communicate(timeout=SECONDS)
        finally:
            server.kill()
    assert listening or server.returncode == 1
    return Attempt(listening, log)


def doctor(missing: str, environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = without(missing, COMMAND, "doctor", *options)
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)


def cached_files(environment: dict[str, str]) -> list[Path]:
    return sorted(Path(environment["XDG_CACHE_HOME"]).rglob("*.json"))


def waive(names: Iterable[str]) -> list[str]:
    return [part for name in names for part in ("--layers", f"{name}=off")]


@all_layers
def test_a_redundant_missing_layer_is_a_warning(environment: dict[str, str]) -> None:
    first = serve("landlock", environment)
    assert first.listening, first.log
    assert "the sandbox has no layer landlock: Operation not supported; it needs Linux 5.13" in first.log
    (result,) = cached_files(environment)
    written = result.stat().st_mtime_ns
    again = serve("landlock", environment)
    assert again.listening, again.log
    assert "the sandbox has no layer landlock" in again.log
    assert result.stat().st_mtime_ns == written
    assert doctor("landlock", environment).returncode == 0


@all_layers
def test_a_required_missing_layer_is_an_error(environment: dict[str, str]) -> None:
    refused = serve("landlock", environment, "--layers", "landlock=required")
    assert not refused.listening
    assert "lacks required layers:\n  landlock: Operation not supported" in refused.log
    looked = doctor("landlock", environment, "--layers", "landlock=required")
    assert (looked.returncode, "lacks required layers" in looked.stderr) == (1, True)


@pytest.mark.skipif(LACKING.keys() - {"bubblewrap", "namespaces"}, reason=f"this machine lacks layers: {LACKING}")
def test_an_open_attack_is_refused_until_it_is_waived(environment: dict[str, str]) -> None:
    """Without user namespaces, the number of threads cannot be limited."""
    missing = "bubblewrap,namespaces"
    refused = serve(missing, environment)
    assert not refused.listening
    assert "these attempts got through:\n  Start threads without end: " in refused.log
    assert "  bubblewrap: there is no bwrap; install the package bubblewrap\n" in refused.log
    assert "accept these attempts with --layers bubblewrap=off --layers namespaces=off" in refused.log
    assert "--isolation none" in refused.log
    assert not cached_files(environment)
    waived = serve(missing, environment, *waive(missing.split(",")))
    assert waived.listening, waived.log
    assert "without bubblewrap, namespaces, these attempts get through: Start threads without end" in waived.log


@pytest.mark.skipif(LACKING.keys() - {"bubblewrap"}, reason=f"this machine lacks layers: {LACKING}")
def test_without_bubblewrap_doctor_and_serve_agree(environment: dict[str, str]) -> None:
    """The result depends on the machine: workers of root stay root if only root can read their Python."""
    looked = doctor("bubblewrap", environment)
    tried = serve("bubblewrap", environment)
    assert tried.listening == (looked.returncode == 0), looked.stdout + tried.log
    assert "there is no bwrap; install the package bubblewrap" in looked.stdout
    assert "there is no bwrap; install the package bubblewrap" in tried.log
    if not tried.listening:
        assert "Start threads without end" in tried.log


@pytest.mark.parametrize("options", [["--isolation", "none"], ["--no-enable-custom-logit-processor"]])
def test_a_server_without_workers_needs_no_layer(environment: dict[str, str], options: list[str]) -> None:
    tried = serve("bubblewrap,namespaces,landlock", environment, *options)
    assert tried.listening, tried.log
    assert not cached_files(environment)
