"""On a machine without a sandbox layer, shipped processors are accepted only if the other layers stop all attacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from logitport_sandbox import LAYERS, users
from tests.missing_layers import CLOSED, without

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMAND = str(Path(sys.executable).with_name("logitport"))
SHIPPED = ["--listen", "127.0.0.1:0", "--device", "cpu", "--enable-custom-logit-processor"]
SECONDS = 200
LACKING = {layer.name: reason for layer in LAYERS if (reason := layer.missing()) is not None}
OWN_USERS = users.lacking() is None

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


@pytest.mark.skipif(OWN_USERS, reason="the kernel counts the threads of each worker by its own user")
@pytest.mark.skipif(LACKING.keys() - {"bubblewrap", "namespaces"}, reason=f"this machine lacks layers: {LACKING}")
def test_an_open_attack_is_refused_until_it_is_waived(environment: dict[str, str]) -> None:
    """Without user namespaces, the number of threads of an ordinary user's worker cannot be limited."""
    missing = "bubblewrap,namespaces"
    refused = serve(missing, environment)
    assert not refused.listening
    assert "these attempts got through:\n  Start threads without end: " in refused.log
    assert "  namespaces: PermissionError" in refused.log
    assert "accept these attempts with --layers namespaces=off" in refused.log
    assert "--isolation none" in refused.log
    assert not cached_files(environment)
    waived = serve(missing, environment, *waive(["namespaces"]))
    assert waived.listening, waived.log
    assert "without namespaces, these attempts get through: Start threads without end" in waived.log


@pytest.mark.skipif(not OWN_USERS, reason=f"workers have no users of their own: {users.lacking()}")
@pytest.mark.skipif(LACKING.keys() - {"bubblewrap", "namespaces"}, reason=f"this machine lacks layers: {LACKING}")
@pytest.mark.parametrize("missing", ["bubblewrap", "bubblewrap,namespaces"])
def test_root_in_a_container_contains_shipped_processors(environment: dict[str, str], missing: str) -> None:
    started = serve(missing, environment)
    assert started.listening, started.log
    assert "the sandbox has no layer bubblewrap: there is no bwrap; install the package bubblewrap" in started.log
    looked = doctor(missing, environment)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert "60707 to 61183, one each" in looked.stdout


@pytest.mark.skipif(not (OWN_USERS and CLOSED), reason="other users can read Python here, or the tests are not root's")
def test_a_python_that_only_root_can_read_is_refused_with_the_remedy(environment: dict[str, str]) -> None:
    missing = "bubblewrap,namespaces,readable-python"
    refused = serve(missing, environment)
    assert not refused.listening
    looked = doctor(missing, environment)
    assert looked.returncode == 1
    for text in (refused.log, looked.stderr):
        assert f"only root can read {CLOSED[0]}" in text
        assert f"`chmod o+x {CLOSED[0]}`" in text


@pytest.mark.parametrize("options", [["--isolation", "none"], ["--no-enable-custom-logit-processor"]])
def test_a_server_without_workers_needs_no_layer(environment: dict[str, str], options: list[str]) -> None:
    tried = serve("bubblewrap,namespaces,landlock", environment, *options)
    assert tried.listening, tried.log
    assert not cached_files(environment)
