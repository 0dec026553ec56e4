"""The service of deploy/systemd, as deploy/README.md installs it, and callers of it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logitport import Client, EditProcessor
from logitport_server.access import new_token

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
NAME = "logitport.service"
TARGET = "127.0.0.1:50051"
FLAG = {"LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESSOR": "true"}
CGROUPS = Path("/sys/fs/cgroup")
_UNITS = Path("/run/systemd/system")
_SETTINGS = Path("/etc/logitport")
_SECONDS = 120.0
_PRINCIPALS = ("engine", "other", "third")


# How much longer everything may take in a machine whose instructions are translated.
PATIENCE = int(os.environ.get("LOGITPORT_MACHINE", "1"))


class DenyOne(EditProcessor):
    """Code of a client: runs in a sandboxed worker."""

    def edit(self, request, edits):
        edits.deny([5])


class Service:
    """The unit.

    Attributes:
        tokens: of each of its principals, with the scopes apply and register.
    """

    def __init__(self) -> None:
        self.tokens = {}
        lines = []
        for name in _PRINCIPALS:
            self.tokens[name], grant = new_token(name, ["apply", "register"])
            lines.append(grant.line)
        _UNITS.mkdir(parents=True, exist_ok=True)
        (_UNITS / NAME).write_text((ROOT / "deploy/systemd" / NAME).read_text())
        (_SETTINGS / "tokens").write_text("\n".join(lines))
        (_SETTINGS / "store.key").write_text(secrets.token_hex(32))

    def start(self, *settings: str, variables: dict[str, str] | None = None) -> None:
        """Start it, with further settings of the unit's section `Service` and options. Waits until it is ready."""
        self.configure(*settings, variables=variables)
        systemctl("start", NAME)
        self.wait_until_ready()

    def configure(self, *settings: str, variables: dict[str, str] | None = None) -> None:
        """Write the drop-in and the environment, in place of the last ones."""
        folder = _UNITS / f"{NAME}.d"
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").write_text("\n".join(["[Service]", *settings, ""]))
        # A machine whose instructions are translated is slow, and no processor is to be blamed for it.
        patient = {
            "LOGITPORT_PROCESSOR_TIMEOUT_SECONDS": f"{2 * PATIENCE}",
            "LOGITPORT_LOAD_TIMEOUT_SECONDS": f"{30 * PATIENCE}",
        }
        lines = [f"{name}={value}\n" for name, value in {**patient, **(variables or {})}.items()]
        (_SETTINGS / "environment").write_text("".join(lines))
        systemctl("daemon-reload")

    def end(self) -> None:
        """Stop it, and forget its failures."""
        systemctl("stop", NAME)
        with suppress(subprocess.CalledProcessError):  # it has not failed
            systemctl("reset-failed", NAME)

    def wait_until_ready(self, seconds: float = 90.0) -> None:
        """Wait for /readyz, as a probe does."""
        wait_for(self.is_ready, seconds)

    def is_ready(self) -> bool:
        """Whether it accepts sessions."""
        try:
            with urllib.request.urlopen("http://127.0.0.1:9090/readyz", timeout=3 * PATIENCE) as reply:
                return reply.status == 200
        except OSError:
            return False

    def client(self, principal: str = "engine") -> Client:
        """A client of one of its principals."""
        return Client(TARGET, token=self.tokens[principal], timeout=60.0 * PATIENCE)

    def show(self, name: str) -> str:
        """A property of the unit."""
        return systemctl("show", "--value", f"--property={name}", NAME).strip()

    @property
    def process_id(self) -> int:
        return int(self.show("MainPID"))

    @property
    def cgroup(self) -> Path:
        return CGROUPS / self.show("ControlGroup").strip("/")

    def log(self) -> str:
        """What this start has logged."""
        journal = ["journalctl", "--no-pager", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={self.show('InvocationID')}"]
        return subprocess.run(journal, capture_output=True, text=True, check=True).stdout


def systemctl(*arguments: str) -> str:
    """Run systemctl. Raises CalledProcessError."""
    return subprocess.run(
        ["systemctl", *arguments], capture_output=True, text=True, check=True, timeout=120 * PATIENCE
    ).stdout


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def delegated(code: str, *settings: str) -> object:
    """Run Python in a unit that may divide its cgroup. Returns what it prints, parsed as JSON."""
    settings = ("Delegate=cpu memory pids", *settings)
    command = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", *(f"--property={each}" for each in settings)]
    python = "/opt/logitport/bin/python"
    done = subprocess.run(
        [*command, python, "-c", code], capture_output=True, text=True, check=False, timeout=120 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
