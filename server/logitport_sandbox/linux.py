"""System calls of Linux that Python has no function for. Constants are from the kernel's headers."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x2008_0522

# System calls without a function in libc. Their numbers are the same on every architecture.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

# By architecture: this system call is older than the common numbers.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _SocketFilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(what: str, option: int, *values: int | ctypes.c_void_p) -> None:
    arguments = [value if isinstance(value, ctypes.c_void_p) else ctypes.c_ulong(value) for value in values]
    arguments += [ctypes.c_ulong(0)] * (4 - len(arguments))
    _checked(_libc.prctl(option, *arguments), what)


def _system_call(what: str, number: int, *values: int | bytes | None) -> int:
    # Without ctypes.c_long an integer is passed as 32 bits, and the kernel reads 64.
    arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds that the flags name. Raises OSError."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Attach a file system of this kind to the tree. Raises OSError."""
    strings = [text.encode() for text in (source, target, kind)]
    _checked(_libc.mount(*strings, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def no_new_privileges() -> None:
    """Prevent programs that this process executes from gaining privileges."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(dumpable: bool) -> None:
    """Set whether this process leaves core dumps, and can be traced by processes of the same user."""
    _prctl("dumpable", _PR_SET_DUMPABLE, int(dumpable))


def die_with_parent(signal_number: int) -> None:
    """Let the kernel send this signal to the process when its parent ends."""
    _prctl("parent death signal", _PR_SET_PDEATHSIG, signal_number)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, also if it hangs or is stopped then.

    The child requests the signal itself. Otherwise the parent would run Python code between fork and exec, which can
    deadlock if it has threads.

    Args:
        parent: the parent's process id. If that has ended already, so does this process.
    """
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the new parent of descendants that lose their parent."""
    _prctl("child subreaper", _PR_SET_CHILD_SUBREAPER, 1)


def filter_system_calls(instructions: bytes) -> None:
    """Load a seccomp filter (BPF, eight bytes for each instruction) for this thread and those that it starts."""
    program = _SocketFilterProgram(len(instructions) // 8, instructions)
    address = ctypes.cast(ctypes.pointer(program), ctypes.c_void_p)
    _prctl("seccomp", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address)


def landlock_version() -> int:
    """Return the kernel's version of Landlock. Raises OSError if the kernel lacks Landlock."""
    return _system_call("landlock", _LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)


def landlock_ruleset(files: int, network: int, scopes: int) -> int:
    """Make a ruleset that denies these rights, and return its descriptor. Raises OSError."""
    # Kernels with a shorter structure accept this one if the additional fields are 0.
    attributes = struct.pack("=QQQ", files, network, scopes)
    return _system_call("landlock ruleset", _LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Add an exception to a ruleset: these rights, on the path and all below it. Raises OSError."""
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        attributes = struct.pack("=Qi", rights, parent)  # the kernel's structure is packed as well
        _system_call(f"landlock {path}", _LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, attributes, 0)
    finally:
        os.close(parent)


def landlock_restrict(ruleset: int) -> None:
    """Apply a ruleset to this thread and those it starts, for good. Raises OSError."""
    _system_call("landlock", _LANDLOCK_RESTRICT_SELF, ruleset, 0)


def drop_capabilities(kept: int = 0) -> None:
    """Drop all capabilities but these, which are bits, and prevent gaining any."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3) != 0:
            break  # past the kernel's last capability, or not permitted: then no_new_privs prevents gaining it
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted and inheritable, of the first 32 capabilities and of the others.
    sets = (ctypes.c_uint32 * 6)(kept, kept)
    _checked(_libc.capset(ctypes.byref(header), sets), "capset")


def keep_capabilities(keep: bool) -> None:
    """Set whether the permitted capabilities outlast a change from root to another user."""
    _prctl("keep capabilities", _PR_SET_KEEPCAPS, int(keep))


def set_time_slice(nanoseconds: int) -> None:
    """Set how long this thread, and threads and processes that it starts, compute before the kernel picks again.

    A thread that wakes up preempts one with a longer slice at once, and one with an equal slice at the slice's end.
    Without effect before Linux 6.12. See sched_setattr(2).

    Args:
        nanoseconds: from 0.1 to 100 ms; 0 for the kernel's.

    Raises:
        OSError: the architecture has an unknown number of the system call, or a sandbox forbids it.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"sched_setattr: its number on {platform.machine()} is unknown")
    # size, policy, flags, niceness, priority, slice, deadline, period. The policy's other settings stay.
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, os.sched_getscheduler(0), 0, niceness, 0, nanoseconds, 0, 0)
    _system_call("sched_setattr", number, 0, attributes, 0)
