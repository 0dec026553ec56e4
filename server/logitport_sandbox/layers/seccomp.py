"""Which system calls a worker may make: those that Python and torch make once they are up, and no others.

Calls that the filter does not name fail as on a kernel that lacks them, so that libc takes others instead; those that
authors know by name fail with EPERM.

The filter is assembled by `bpf.py`. `pyseccomp` lost: it is from 2021, and needs libseccomp, with a version that
knows the calls. `seccompy` lost: it is months old, and 2,300 lines. A filter that is compiled ahead and
committed lost: it cannot be reviewed.
"""

from __future__ import annotations

import errno
import platform
import sys
from typing import TYPE_CHECKING

from logitport_sandbox import linux
from logitport_sandbox.layers.bpf import ALLOW, Match, assemble, fail_with
from logitport_sandbox.layers.layer import Layer
from logitport_sandbox.layers.system_calls import ALLOWED, AUDIT_ARCHITECTURES, DENIED, names, numbers
from logitport_sandbox.plan import SandboxError

if TYPE_CHECKING:
    from logitport_sandbox.plan import SandboxPlan, WorkerLimits

# What the CUDA driver needs of the denied calls, and what it makes for itself. Its sockets are Unix sockets, which lead
# nowhere.
_DRIVER = "bind memfd_create pipe pipe2 setsockopt"
_AF_UNIX = 1

_CLONE_THREAD = 0x0001_0000
# PR_SET_NAME, PR_GET_NAME, PR_SET_VMA: names of threads and of memory.
_PRCTL = (15, 16, 0x5356_4D41)
# TCGETS, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TIOCGWINSZ: what Python calls on any descriptor.
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5451, 0x5450, 0x5413)
_WORD = 0xFFFF_FFFF

_DENIED = fail_with(errno.EPERM)
_LACKING = fail_with(errno.ENOSYS)


class Seccomp(Layer):
    """seccomp(2)."""

    name = "seccomp"
    does = "no new processes or programs, no sockets, no tracing, no signals, none of the kernel's rarer calls"

    def missing(self) -> str | None:
        if sys.platform != "linux":
            return "seccomp is a part of Linux"
        try:
            compile_filter(in_pid_namespace=True, devices=False)
        except SandboxError as error:
            return str(error)
        return None

    def apply(self, plan: SandboxPlan, limits: WorkerLimits) -> None:
        del limits
        linux.filter_system_calls(plan.system_calls)


def compile_filter(*, in_pid_namespace: bool, devices: bool, machine: str | None = None) -> bytes:
    """Return the filter as BPF, eight bytes an instruction.

    Args:
        in_pid_namespace: a worker is process 1 of its own namespace, and may signal
            itself; otherwise it may signal no process.
        devices: a worker may make any ioctl, which device nodes need, and the system calls of the CUDA driver.
        machine: architecture, as `platform.machine` names it; by default this machine's.

    Raises SandboxError for an architecture with unknown system calls.
    """
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCHITECTURES:
        known = " or ".join(AUDIT_ARCHITECTURES)
        raise SandboxError(f"there is no filter for {machine or 'this machine'}; it needs {known}")
    number_of = numbers(machine)
    verdicts = {
        number: verdict
        for name, verdict in _verdicts(in_pid_namespace, devices).items()
        if (number := number_of[name]) is not None
    }
    return assemble(AUDIT_ARCHITECTURES[machine], verdicts, _LACKING)


def _verdicts(in_pid_namespace: bool, devices: bool) -> dict[str, int | Match]:
    signals = Match(0, (1,), _DENIED) if in_pid_namespace else _DENIED
    verdicts: dict[str, int | Match] = dict.fromkeys(names(ALLOWED), ALLOW)
    verdicts |= dict.fromkeys(names(DENIED), _DENIED)
    verdicts |= {
        "clone": Match(0, (_CLONE_THREAD,), _DENIED, mask=_CLONE_THREAD),
        "prlimit64": Match(2, (0,), _DENIED),  # to read limits, not to set them
        "prctl": Match(0, _PRCTL, _LACKING, mask=_WORD),
        "ioctl": Match(1, _IOCTL, _LACKING, mask=_WORD),
        "kill": signals,
        "tgkill": signals,
    }
    if devices:
        verdicts |= dict.fromkeys((*_DRIVER.split(), "ioctl"), ALLOW)
        verdicts["socket"] = Match(0, (_AF_UNIX,), _DENIED)
    return verdicts
