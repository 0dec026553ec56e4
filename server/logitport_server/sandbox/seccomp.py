"""Which system calls a worker may make: those that Python and torch make once they are up, and no others.

The filter is compiled in the server, so that workers need no libseccomp. Calls that it does not name fail as on a
kernel that lacks them, so that libc takes others instead; those that authors know by name fail with EPERM.
"""

from __future__ import annotations

import errno
import sys
import tempfile
from typing import TYPE_CHECKING

from logitport_server.sandbox import linux
from logitport_server.sandbox.layer import Layer

if TYPE_CHECKING:
    from logitport_server.sandbox.plan import Limits, Plan

_MEMORY = "brk madvise membarrier mincore mmap mprotect mremap msync munmap"
_FILES = """
    access close close_range dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate fchmod fcntl fdatasync flock fstat
    fstatfs fsync ftruncate getcwd getdents64 lseek lstat mkdir mkdirat newfstatat open openat pread64 preadv pwrite64
    pwritev read readlink readlinkat readv rename renameat renameat2 rmdir stat statfs statx umask unlink unlinkat
    write writev
"""
_THREADS = """
    exit exit_group futex futex_waitv get_robust_list getcpu gettid rseq sched_getaffinity sched_getparam
    sched_getscheduler sched_yield set_robust_list set_tid_address
"""
_SIGNALS = """
    restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack
"""
_TIME = "clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time times"
_SELF = """
    getegid geteuid getgid getgroups getpgrp getpid getppid getrandom getresgid getresuid getrlimit getrusage getuid
    sysinfo uname
"""
# On descriptors that the server gave it: a worker can neither make nor connect a socket.
_WAITING = """
    epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd2 getpeername getsockname getsockopt poll ppoll
    pselect6 recvfrom recvmsg select sendmsg sendto shutdown
"""
_ALLOWED = " ".join((_MEMORY, _FILES, _THREADS, _SIGNALS, _TIME, _SELF, _WAITING))
_DENIED = """
    accept accept4 bind chmod chown chroot connect execve execveat fork link listen mount pipe pipe2 ptrace
    sched_setaffinity setgid setgroups setpriority setregid setresgid setresuid setreuid setrlimit setsockopt setuid
    socket socketpair symlink umount2 unshare vfork
"""

# Of those, what the CUDA driver needs, and what it makes for itself: sockets are Unix sockets, which lead nowhere.
_DRIVER = "bind memfd_create pipe pipe2 setsockopt"
_AF_UNIX = 1

_CLONE_THREAD = 0x0001_0000
# PR_SET_NAME, PR_GET_NAME, PR_SET_VMA: what threads are called, and what their memory is.
_PRCTL = (15, 16, 0x5356_4D41)
# TCGETS, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TIOCGWINSZ: what Python asks of any descriptor.
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5451, 0x5450, 0x5413)
_WORD = 0xFFFF_FFFF


class Seccomp(Layer):
    """seccomp(2), by way of libseccomp."""

    name = "seccomp"
    does = "no new processes or programs, no sockets, no tracing, no signals, none of the kernel's rarer calls"

    def missing(self) -> str | None:
        if sys.platform != "linux":
            return "seccomp is a part of Linux"
        try:
            compile_filter(in_pid_namespace=True, devices=False)
        except ImportError as error:
            return f"{error}; install logitport[server]"
        except RuntimeError as error:
            return f"{error}; install the package libseccomp2 (Debian, Ubuntu) or libseccomp"
        except OSError as error:
            return f"libseccomp refuses the filter: {error}; it needs libseccomp 2.5"
        return None

    def apply(self, plan: Plan, limits: Limits) -> None:
        del limits
        linux.filter_system_calls(plan.system_calls)


def compile_filter(*, in_pid_namespace: bool, devices: bool) -> bytes:
    """The filter as BPF, eight bytes an instruction.

    Args:
        in_pid_namespace: a worker is process 1 of its own, and may signal that one; else it may signal none.
        devices: it may make any ioctl, which is how device nodes are used, and what the CUDA driver calls.

    Raises OSError of libseccomp's, RuntimeError if that is not installed, ImportError without the package pyseccomp.
    """
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
    denied = seccomp.ERRNO(errno.EPERM)
    driver = _DRIVER.split() if devices else []
    for name in filter(_exists, (*_ALLOWED.split(), *driver)):
        rules.add_rule(seccomp.ALLOW, name)
    for name in filter(_exists, _DENIED.split()):
        if name == "socket" and devices:
            rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, _AF_UNIX))
            rules.add_rule(denied, name, seccomp.Arg(0, seccomp.NE, _AF_UNIX))
        elif name not in driver:
            rules.add_rule(denied, name)
    rules.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
    rules.add_rule(denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, 0))
    rules.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(2, seccomp.EQ, 0))  # to read limits, not to set them
    rules.add_rule(denied, "prlimit64", seccomp.Arg(2, seccomp.NE, 0))
    for option in _PRCTL:
        rules.add_rule(seccomp.ALLOW, "prctl", seccomp.Arg(0, seccomp.MASKED_EQ, _WORD, option))
    for request in _IOCTL:
        rules.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, _WORD, request))
    if devices:
        rules.add_rule(seccomp.ALLOW, "ioctl")
    for name in ("kill", "tgkill"):
        if in_pid_namespace:
            rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, 1))
            rules.add_rule(denied, name, seccomp.Arg(0, seccomp.NE, 1))
        else:
            rules.add_rule(denied, name)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _exists(name: str) -> bool:
    """Whether this machine's architecture has the call: the newer ones lack `open` and its like."""
    import pyseccomp as seccomp

    try:
        return bool(seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0)
    except OSError:
        return False
