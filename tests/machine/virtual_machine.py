"""Boots a virtual machine, has it run its tests, and returns what it has written. It has no network.

A machine gets a disk with an archive, and writes an archive with its results to another disk. Its console is stdout.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.machine.debian import Boot

_KVM_CREATE_VM = 0xAE01
_RESULTS_BYTES = 32 << 20
# How much longer everything may take if QEMU translates the machine's instructions.
_TRANSLATED = 12


class Size(NamedTuple):
    """What a machine has."""

    cores: int = 2
    memory_mib: int = 2048


def has_kvm() -> bool:
    """Whether this machine's processor can run a virtual one. Otherwise QEMU translates its instructions.

    A kernel may create virtual machines without the processor's help. KVM then emulates their kernel, which lacks
    instructions that Debian's kernel uses (cmpxchg16b, shlx), and takes longer than QEMU.
    """
    if not re.search(r"^flags\s*:.* (vmx|svm)\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
        return False
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(fcntl.ioctl(device, _KVM_CREATE_VM))
    except OSError:
        return False
    finally:
        os.close(device)
    return True


def patience() -> int:
    """The factor of all times that something may take in a machine."""
    return 1 if has_kvm() else _TRANSLATED


def run(boot: Boot, size: Size, archive: Path, folder: Path, seconds: float) -> None:
    """Run a machine until it ends itself.

    Args:
        boot: its kernel and its file system, which it does not change.
        size: its cores and memory.
        archive: a tar file, which it unpacks to /.
        folder: where its results and its console are written.
        seconds: the machine is ended after this time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.tar"
    with results.open("wb") as file:
        file.truncate(_RESULTS_BYTES)
    processor = ("-accel", "kvm", "-cpu", "host") if has_kvm() else ("-accel", "tcg,thread=multi", "-cpu", "max")
    # The kernel tests its timer against the clock of a machine that may be busy.
    start = f"no_timer_check systemd.default_timeout_start_sec={90 * patience()}"
    drives = ((boot.root, "snapshot=on"), (archive, "readonly=on"), (results, "snapshot=off"))
    command = [
        *("qemu-system-x86_64", "-machine", "q35", *processor, "-smp", str(size.cores), "-m", str(size.memory_mib)),
        *("-nodefaults", "-no-reboot", "-display", "none", "-nic", "none", "-device", "virtio-rng-pci"),
        *(part for path, option in drives for part in ("-drive", f"file={path},format=raw,if=virtio,{option}")),
        *("-kernel", str(boot.kernel), "-initrd", str(boot.initrd), "-serial", "stdio"),
        *("-append", f"root=/dev/vda ro console=ttyS0 quiet panic=-1 {start}"),
    ]
    with (folder / "console").open("wb", buffering=0) as console:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                console.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
                if line.startswith(b"KVM internal error"):  # QEMU stops the machine, and does not end
                    process.kill()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
    with tarfile.open(results) as archived:
        archived.extractall(folder, filter="data")
