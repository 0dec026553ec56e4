"""Runs in a machine as root when it has started: runs its tests, and writes the results.

It imports nothing but the standard library. `plan.json` has the runs of pytest, and whether `/` is read-only meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

FOLDER = Path("/opt/machine")
RESULTS = Path("/run/results")
SERVER, TESTS = Path("/opt/logitport"), FOLDER / "environment"


def main() -> None:
    began = time.monotonic()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    plan = json.loads((FOLDER / "plan.json").read_text())
    RESULTS.mkdir()
    settings = Path("/etc/logitport")
    settings.mkdir(mode=0o700)
    if plan["read_only"]:
        os.sync()
        # The folders that a running system writes are in memory, as on an appliance.
        for path, size in (("/var", "48m"), ("/root", "1m"), ("/tmp", "64m"), (str(settings), "1m")):
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
        subprocess.run(["mount", "-o", "remount,ro", "/"], check=True)
    for name, run in plan["runs"].items():
        print(f"== {name}", flush=True)
        pytest(name, run, plan["patience"])
    systemd = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    facts = {
        "kernel": platform.release(),
        "systemd": systemd,
        "python": platform.python_version(),
        "landlock": landlock(),
        "boot_seconds": round(uptime, 1),
        "seconds": round(uptime + time.monotonic() - began, 1),
    }
    (RESULTS / "facts.json").write_text(json.dumps(facts))
    subprocess.run(["tar", "-cf", "/dev/vdc", "-C", RESULTS, "."], check=True)
    os.sync()


def pytest(name: str, run: dict[str, object], patience: int) -> None:
    """Run tests as root, or as a user without a name and without rights."""
    report = RESULTS / f"{name}.xml"
    home = RESULTS / f"home-{name}"
    home.mkdir()
    report.touch()
    command: list[object] = [
        TESTS / "bin/python",
        "-B",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-v",
        "-rs",
        "--tb=short",
    ]
    command += ["--tb=short", f"--junitxml={report}", f"--timeout={300 * patience}", *run["arguments"]]
    if run["unprivileged"]:
        for path in (report, home):
            shutil.chown(path, 4321, 4321)
        command = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", *command]
    variables = {**os.environ, "HOME": str(home), "LOGITPORT_MACHINE": str(patience)}
    variables["HYPOTHESIS_STORAGE_DIRECTORY"] = str(home)  # its default is in a folder of root
    subprocess.run([*map(str, command)], cwd=FOLDER, env=variables, check=False)
    shutil.rmtree(home, ignore_errors=True)


def landlock() -> int:
    """The version of Landlock, 0 if the kernel has none."""
    code = "from logitport_sandbox.linux import landlock_version; print(landlock_version())"
    done = subprocess.run([SERVER / "bin/python", "-c", code], capture_output=True, text=True, check=False)
    return int(done.stdout or 0)  # OSError


if __name__ == "__main__":
    try:
        main()
    finally:
        subprocess.run(["journalctl", "-b", "--no-pager", "-n", "200", "-p", "warning"], check=False)
