"""deploy/systemd/logitport.service is valid, hardened, and starts the server with options that it accepts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from logitport_server.config import ServerConfig
from logitport_server.http_pages import status_pages
from tests.conftest import COMMAND

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "logitport.service"
# Of 0 (safe) to 10. A service of the same kind without the unit's settings has more than 9.
MAX_EXPOSURE = 3.2
# These would take layers from the sandbox; the unit says why.
LEFT_OFF = (
    "ProtectKernelTunables",
    "ProtectKernelLogs",
    "ProtectHostname",
    "ProcSubset",
    "RestrictNamespaces",
    "ProtectControlGroups",
    "MemoryDenyWriteExecute",
)
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (apt-get install systemd)"
)


def settings() -> dict[str, list[str]]:
    """The values of each setting of the unit, in order."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().replace("\\\n", " ").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value.strip())
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@needs_systemd
def test_the_unit_is_valid(tmp_path: Path) -> None:
    """systemd also checks that the command exists, so that of the tests replaces it."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/logitport/bin/logitport", COMMAND))
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_hardened() -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(UNIT))
    assert done.returncode == 0, done.stdout
    exposure = re.search(r"exposure level for logitport\.service: ([\d.]+)", done.stdout)
    assert exposure
    assert float(exposure[1]) <= MAX_EXPOSURE


def test_the_sandbox_keeps_its_layers() -> None:
    assert not {*settings()} & {*LEFT_OFF}
    for name in LEFT_OFF:
        assert f"{name}=" in UNIT.read_text()
    assert "AF_NETLINK" in settings()["RestrictAddressFamilies"][0]
    calls = " ".join(settings()["SystemCallFilter"]).split()
    assert {"@mount", "seccomp", "sethostname", "landlock_restrict_self"} <= {*calls}


@pytest.mark.slow
def test_the_server_accepts_its_options(tmp_path: Path) -> None:
    """The command is run with a store and keys of this test, up to a port that cannot be bound."""
    (tmp_path / "logitport").mkdir()
    (tmp_path / "tokens").write_text("")
    (tmp_path / "store.key").write_text("0" * 64)
    (command,) = settings()["ExecStart"]
    _, *arguments = shlex.split(re.sub("%[dS]", str(tmp_path), command))
    arguments[arguments.index("--listen") + 1] = "192.0.2.1:50051"
    arguments[arguments.index("--metrics-listen") + 1] = "127.0.0.1:0"
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "192.0.2.1:50051" in done.stderr.splitlines()[-1]
    assert (tmp_path / "logitport" / "store" / "registry.db").exists()


def test_a_wrong_option_is_not_tried_again() -> None:
    assert settings()["Restart"] == ["on-failure"]
    assert settings()["RestartPreventExitStatus"] == [str(click.UsageError.exit_code)]


def test_it_is_stopped_after_the_server_has_drained() -> None:
    fields = ServerConfig.model_fields
    (seconds,) = settings()["TimeoutStopSec"]
    assert settings()["KillSignal"] == ["SIGTERM"]
    assert int(seconds) > fields["stop_seconds"].default


def test_credentials_are_those_that_the_command_uses() -> None:
    (command,) = settings()["ExecStart"]
    loaded = {value.partition(":")[0] for value in settings()["LoadCredential"]}
    assert loaded == set(re.findall(r"%d/(\S+)", command))


def test_a_server_that_hangs_is_killed_after_the_time_of_healthz() -> None:
    """SIGABRT, the default, would wait for a process that is stopped."""
    assert settings()["Type"] == ["notify"]
    assert settings()["WatchdogSec"] == [f"{status_pages.MAX_SILENCE_SECONDS:.0f}"]
    assert settings()["WatchdogSignal"] == ["SIGKILL"]
