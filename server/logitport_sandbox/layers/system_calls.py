"""The system calls that the seccomp filter names: which are allowed, and their numbers for each architecture.

From the kernel's headers: asm/unistd_64.h for x86_64, asm-generic/unistd.h for aarch64. A number never changes.
"""

from __future__ import annotations

# The architecture's name in `struct seccomp_data` (linux/audit.h), by what `platform.machine` returns. These are the
# architectures that torch has wheels for; another one is a constant here and a column below.
AUDIT_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

# Columns are in the order of AUDIT_ARCHITECTURES. A dash: the architecture does not have the call.
ALLOWED = """
# memory
brk                 12 214
madvise             28 233
membarrier         324 283
mincore             27 232
mmap                 9 222
mprotect            10 226
mremap              25 216
msync               26 227
munmap              11 215
# files
access              21   -
close                3  57
close_range        436 436
dup                 32  23
dup2                33   -
dup3               292  24
faccessat          269  48
faccessat2         439 439
fadvise64          221 223
fallocate          285  47
fchmod              91  52
fcntl               72  25
fdatasync           75  83
flock               73  32
fstat                5  80
fstatfs            138  44
fsync               74  82
ftruncate           77  46
getcwd              79  17
getdents64         217  61
lseek                8  62
lstat                6   -
mkdir               83   -
mkdirat            258  34
newfstatat         262  79
open                 2   -
openat             257  56
pread64             17  67
preadv             295  69
pwrite64            18  68
pwritev            296  70
read                 0  63
readlink            89   -
readlinkat         267  78
readv               19  65
rename              82   -
renameat           264  38
renameat2          316 276
rmdir               84   -
stat                 4   -
statfs             137  43
statx              332 291
umask               95 166
unlink              87   -
unlinkat           263  35
write                1  64
writev              20  66
# threads
exit                60  93
exit_group         231  94
futex              202  98
futex_waitv        449 449
get_robust_list    274 100
getcpu             309 168
gettid             186 178
rseq               334 293
sched_getaffinity  204 123
sched_getparam     143 121
sched_getscheduler 145 120
sched_yield         24 124
set_robust_list    273  99
set_tid_address    218  96
# signals
restart_syscall    219 128
rt_sigaction        13 134
rt_sigpending      127 136
rt_sigprocmask      14 135
rt_sigreturn        15 139
rt_sigsuspend      130 133
rt_sigtimedwait    128 137
sigaltstack        131 132
# time
clock_getres       229 114
clock_gettime      228 113
clock_nanosleep    230 115
gettimeofday        96 169
nanosleep           35 101
time               201   -
times              100 153
# the process itself
getegid            108 177
geteuid            107 175
getgid             104 176
getgroups          115 158
getpgrp            111   -
getpid              39 172
getppid            110 173
getrandom          318 278
getresgid          120 150
getresuid          118 148
getrlimit           97 163
getrusage           98 165
getuid             102 174
sysinfo             99 179
uname               63 160
# descriptors that the server gave it: a worker can neither make nor connect a socket
epoll_create1      291  20
epoll_ctl          233  21
epoll_pwait        281  22
epoll_pwait2       441 441
epoll_wait         232   -
eventfd2           290  19
getpeername         52 205
getsockname         51 204
getsockopt          55 209
poll                 7   -
ppoll              271  73
pselect6           270  72
recvfrom            45 207
recvmsg             47 212
select              23   -
sendmsg             46 211
sendto              44 206
shutdown            48 210
"""
DENIED = """
accept              43 202
accept4            288 242
bind                49 200
chmod               90   -
chown               92   -
chroot             161  51
connect             42 203
execve              59 221
execveat           322 281
fork                57   -
link                86   -
listen              50 201
mount              165  40
pipe                22   -
pipe2              293  59
ptrace             101 117
sched_setaffinity  203 122
setgid             106 144
setgroups          116 159
setpriority        141 140
setregid           114 143
setresgid          119 149
setresuid          117 147
setreuid           113 145
setrlimit          160 164
setsockopt          54 208
setuid             105 146
socket              41 198
socketpair          53 199
symlink             88   -
umount2            166  39
unshare            272  97
vfork               58   -
"""
# The verdict depends on an argument, or on whether the worker has a GPU.
CONDITIONAL = """
clone               56 220
ioctl               16  29
kill                62 129
memfd_create       319 279
prctl              157 167
prlimit64          302 261
tgkill             234 131
"""


def names(table: str) -> list[str]:
    """Names of the calls in a table."""
    return [row[0] for row in _rows(table)]


def numbers(machine: str) -> dict[str, int | None]:
    """Numbers by name; None for a call that the architecture does not have."""
    column = 1 + list(AUDIT_ARCHITECTURES).index(machine)
    rows = _rows(ALLOWED + DENIED + CONDITIONAL)
    return {row[0]: None if row[column] == "-" else int(row[column]) for row in rows}


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines() if line and not line.startswith("#")]
