"""The file system and the kernels of the machines, from Debian's packages.

All machines have one file system, of RELEASE, and one of several kernels. Debian's servers are those of this machine's
apt, or the public one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

RELEASE = "bookworm"
# Releases with the kernel that each of them brings.
KERNELS = ("bullseye", "bookworm", "trixie")
_PUBLIC = "http://deb.debian.org/debian"
_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "initramfs-tools", "procps", "iproute2", "util-linux"),
    *("python3", "python3-venv", "bubblewrap", "ca-certificates"),
)
# What a machine for tests does without.
_MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("getty@tty1.service", "serial-getty@ttyS0.service", "systemd-logind.service"),
)
_GIBIBYTES = 3
# Old snapshots of Debian, too.
_OPTIONS = ('Acquire::Check-Valid-Until "false"', 'Acquire::Languages "none"')
_BEGIN = "mount -o remount,rw / && tar -xf /dev/vdb -C / && exec python3 -u /opt/machine/tests/machine/guest/begin.py"
# Runs the tests as soon as the system has started, and ends the machine.
_SERVICE = f"""\
[Unit]
Description=Tests of logitport
After=basic.target dbus.service systemd-user-sessions.service
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=oneshot
ExecStart=/bin/sh -c '{_BEGIN}'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
Environment=HOME=/root

[Install]
WantedBy=default.target
"""


class Boot(NamedTuple):
    """What a machine is started with.

    Attributes:
        tree: the files of `root`, to install packages with its Python.
    """

    tree: Path
    root: Path
    kernel: Path
    initrd: Path


def mirror() -> str:
    """Return the address of Debian's packages that this machine uses."""
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    try:
        found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        found = []
    return next((address.rstrip("/") for address in found if address.rstrip("/").endswith("/debian")), _PUBLIC)


def prepare(folder: Path) -> dict[str, Boot]:
    """Build the file system and the kernels in a folder, or keep those that are there. Returns them by release."""
    folder = folder.resolve()  # apt reads relative paths below /
    content = (RELEASE, KERNELS, _PACKAGES, _MASKED, _SERVICE, _GIBIBYTES)
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    root = folder / f"root-{key}.ext4"
    tree = folder / "tree"
    boots = {
        release: Boot(tree, root, folder / f"vmlinuz-{release}", folder / f"initrd-{release}") for release in KERNELS
    }
    if not root.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("root-*.ext4"):
            old.unlink()
        shutil.rmtree(tree, ignore_errors=True)
        _build(tree, boots)
    return boots


def _build(tree: Path, boots: dict[str, Boot]) -> None:
    address = mirror()
    options = [f"--aptopt={option}" for option in _OPTIONS]
    options += ["--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    _run("mmdebstrap", "--quiet", *options, RELEASE, tree, address)
    for release, boot in boots.items():
        version = _install_kernel(tree, release, address)
        _run("chroot", tree, "update-initramfs", "-c", "-k", version)
        shutil.copy(tree / "boot" / f"vmlinuz-{version}", boot.kernel)
        shutil.copy(tree / "boot" / f"initrd.img-{version}", boot.initrd)
    shutil.rmtree(tree / "boot")
    service = tree / "etc/systemd/system/machine-tests.service"
    service.write_text(_SERVICE)
    _run("chroot", tree, "systemctl", "enable", service.name)
    for name in _MASKED:
        _run("chroot", tree, "systemctl", "mask", name)
    (tree / "etc/hostname").write_text("machine\n")
    part = boots[RELEASE].root.with_suffix(".part")
    with part.open("w") as file:
        os.truncate(file.fileno(), _GIBIBYTES << 30)
    _run("mke2fs", "-q", "-t", "ext4", "-d", tree, part)
    part.rename(boots[RELEASE].root)


def _install_kernel(tree: Path, release: str, address: str) -> str:
    """Unpack the kernel of a release into the file system. Returns its version.

    It is not installed, because it would depend on other packages of its release.
    """
    with TemporaryDirectory(dir=tree.parent) as work:
        state = Path(work)
        for name in ("lists/partial", "archives/partial", "unpacked"):
            (state / name).mkdir(parents=True)
        (state / "sources.list").write_text(f"deb {address} {release} main\n")
        options = {
            "Dir::Etc::SourceList": state / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": state / "lists",
            "Dir::State::Status": "/dev/null",
            "Dir::Cache": state,
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
            "Acquire::Check-Valid-Until": "false",
            "Acquire::Languages": "none",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        _run("apt-get", *given, "-qq", "update")
        listed = _run("apt-cache", *given, "depends", "--important", "linux-image-cloud-amd64")
        (package,) = [line.split()[1] for line in listed.splitlines() if "Depends: linux-image-" in line]
        _run("apt-get", *given, "-qq", "download", package, cwd=state)
        (file,) = state.glob("*.deb")
        unpacked = state / "unpacked"
        _run("dpkg-deb", "-x", file, unpacked)
        version = package.removeprefix("linux-image-")
        modules = next(path for path in (unpacked / "lib", unpacked / "usr/lib") if (path / "modules").exists())
        shutil.copytree(modules / "modules" / version, tree / "usr/lib/modules" / version, symlinks=True)
        shutil.copytree(unpacked / "boot", tree / "boot", dirs_exist_ok=True)
    _run("chroot", tree, "depmod", version)
    return version


def _run(*command: object, cwd: Path | None = None) -> str:
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd)
    if ran.returncode:
        raise SystemExit(f"make machine: {command[0]} has failed with status {ran.returncode}: {ran.stderr[-2000:]}")
    return ran.stdout
