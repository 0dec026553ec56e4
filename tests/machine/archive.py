"""What a machine gets: the wheel of this tree, the wheels that it needs, its tests, and the unit of systemd."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
_TESTS = ("pytest", "pytest-timeout", "hypothesis")
_PYTHON = "3.11"  # of debian.RELEASE
SERVER, TESTS = "/opt/logitport", "/opt/machine/environment"
# Of the tests, the folders that a machine needs and what they import from the others.
_LEFT_OUT = ("engines", "peers", "stored", "__pycache__")


def build_wheels(folder: Path) -> None:
    """Build the wheel of this tree, and fetch those of the extra `server`, without torch, and of the tests."""
    shutil.rmtree(folder, ignore_errors=True)
    if f"{sys.version_info.major}.{sys.version_info.minor}" != _PYTHON:
        raise SystemExit(f"make machine needs Python {_PYTHON}, as the machines have, to build the wheel")
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("logitport-*.whl")
    constraints = ["--only-binary=:all:", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "download", "-q", *constraints, "-d", str(folder), f"{wheel}[server]", *_TESTS], check=True)


def install(tree: Path, wheels: Path) -> None:
    """Install the server as deploy/README.md does, in the file system of the machines, with its Python.

    The tests have an environment beside it, which uses its packages. A machine itself would take minutes if QEMU
    translates its instructions.
    """
    for path in (tree / "opt").iterdir():
        shutil.rmtree(path)
    shutil.copytree(wheels, tree / "opt/wheels")

    def run(*command: str) -> None:
        subprocess.run(["chroot", str(tree), *command], check=True)

    run("python3", "-m", "venv", SERVER)
    run("python3", "-m", "venv", "--without-pip", TESTS)
    options = ["install", "-q", "--no-index", "--find-links", "/opt/wheels"]
    run(f"{SERVER}/bin/python", "-m", "pip", *options, "logitport[server]")
    run(f"{SERVER}/bin/python", "-m", "pip", "--python", f"{TESTS}/bin/python", *options, *_TESTS)
    packages, own = (f"{folder}/lib/python{_PYTHON}/site-packages" for folder in (SERVER, TESTS))
    (tree / own.strip("/") / "server.pth").write_text(f"{packages}\n")
    (tree / TESTS.strip("/") / "bin/logitport").symlink_to(f"{SERVER}/bin/logitport")
    shutil.rmtree(tree / "opt/wheels")


def write(path: Path, tree: Path, plan: Mapping[str, Any]) -> None:
    """Write the archive of a machine: what `install` has installed, the tests, and the unit.

    Args:
        path: the tar file.
        tree: the file system of the machines.
        plan: for `guest/begin.py`.
    """

    def accept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if set(Path(member.name).parts) & {*_LEFT_OUT} else member

    planned = path.with_suffix(".json")
    planned.write_text(json.dumps(plan))
    with tarfile.open(path, "w") as archive:
        archive.add(tree / "opt", "opt")
        archive.add(planned, "opt/machine/plan.json")
        for name in ("tests", "deploy", "pyproject.toml", "docs/security.md"):
            archive.add(ROOT / name, f"opt/machine/{name}", filter=accept)
