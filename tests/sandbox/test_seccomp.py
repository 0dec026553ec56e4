"""Verdicts of the seccomp filter, by an interpreter of BPF for each architecture, and by this machine's kernel."""

import errno
import platform
import signal
import struct

import pytest

from logitport_sandbox.layers.seccomp import compile_filter
from logitport_sandbox.layers.system_calls import AUDIT_ARCHITECTURES, numbers

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
EPERM, ENOSYS = 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS

# From the filter that libseccomp 2.5.4 makes of the same rules, for arguments of 0 and workers without devices. They
# check both the table of numbers and the assembler.
ALLOWED = {
    "x86_64": """
        0-15 17-21 23-28 32-33 35 39 44-48 51-52 55 60 63 72-75 77 79 82-84 87 89 91 95-100 102 104 107-108 110-111 115
        118 120 127-128 130-131 137-138 143 145 186 201-202 204 217-219 221 228-233 257-258 262-264 267 269-271 273-274
        281 285 290-292 295-296 302 309 316 318 324 332 334 436 439 441 449
    """,
    "aarch64": """
        17 19-25 32 34-35 38 43-44 46-48 52 56-57 61-70 72-73 78-80 82-83 93-94 96 98-101 113-115 120-121 123-124 128
        132-137 139 148 150 153 158 160 163 165-166 168-169 172-179 204-207 209-212 214-216 222-223 226-227 232-233 261
        276 278 283 291 293 436 439 441 449
    """,
}
DENIED = {
    "x86_64": """
        22 41-43 49-50 53-54 56-59 62 86 88 90 92 101 105-106 113-114 116-117 119 141 160-161 165-166 203 234 272 288
        293 322
    """,
    "aarch64": "39-40 51 59 97 117 122 129 131 140 143-147 149 159 164 198-203 208 220-221 242 281",
}
# ioctl, pipe, bind, setsockopt, pipe2, memfd_create
ALLOWED_WITH_DEVICES = {"x86_64": {16, 22, 49, 54, 293, 319}, "aarch64": {29, 59, 200, 208, 279}}
CALLS = range(1024)  # the kernel has about 470


def verdict(program: bytes, architecture: int, call: int, *arguments: int) -> int:
    """Run the filter as the kernel does, and return what it returns."""
    given = struct.pack("<iIQ6Q", call, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("<HBBI", program))
    word, at = 0, 0
    while True:
        operation, then, otherwise, value = instructions[at]
        at += 1
        match operation:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (word,) = struct.unpack_from("<I", given, value)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                word &= value
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                at += then if word == value else otherwise
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                at += then if word >= value else otherwise
            case 0x06:  # BPF_RET | BPF_K
                return value
            case _:
                raise ValueError(f"there is no operation {operation:#x}")


def calls(ranges: str) -> set[int]:
    bounds = [text.partition("-") for text in ranges.split()]
    return {call for first, _, last in bounds for call in range(int(first), int(last or first) + 1)}


@pytest.mark.parametrize("devices", [False, True], ids=["no devices", "devices"])
@pytest.mark.parametrize("in_pid_namespace", [False, True], ids=["shared pids", "own pids"])
@pytest.mark.parametrize("machine", AUDIT_ARCHITECTURES)
def test_every_call_gets_the_verdict_of_libseccomp(machine, in_pid_namespace, devices):
    program = compile_filter(in_pid_namespace=in_pid_namespace, devices=devices, machine=machine)
    driver = ALLOWED_WITH_DEVICES[machine] if devices else set()
    allowed, denied = calls(ALLOWED[machine]) | driver, calls(DENIED[machine]) - driver
    expected = {call: ALLOW if call in allowed else EPERM if call in denied else ENOSYS for call in CALLS}
    assert {call: verdict(program, AUDIT_ARCHITECTURES[machine], call) for call in CALLS} == expected


@pytest.mark.parametrize("machine", AUDIT_ARCHITECTURES)
def test_calls_of_another_abi_end_the_process(machine):
    program = compile_filter(in_pid_namespace=True, devices=True, machine=machine)
    i386, arm = 0x4000_0003, 0x4000_0028
    for architecture in {i386, arm, 0, *AUDIT_ARCHITECTURES.values()} - {AUDIT_ARCHITECTURES[machine]}:
        assert {verdict(program, architecture, call) for call in CALLS} == {KILL}
    x32 = 0x4000_0000
    assert {verdict(program, AUDIT_ARCHITECTURES[machine], x32 | call) for call in CALLS} == {KILL}
    assert verdict(program, AUDIT_ARCHITECTURES[machine], x32 - 1) == ENOSYS


THREAD = 0x0001_0000
UPPER = 1 << 32  # a bit that the kernel ignores in an argument of 32 bits
BY_ARGUMENT = [
    ("clone", {}, [((THREAD,), ALLOW), ((0x003D_0F00,), ALLOW), ((0,), EPERM), ((17,), EPERM), ((UPPER,), EPERM)]),
    ("prlimit64", {}, [((0, 7, 0), ALLOW), ((0, 7, 1), EPERM), ((0, 7, UPPER), EPERM)]),
    ("prctl", {}, [((15,), ALLOW), ((16 | UPPER,), ALLOW), ((0x5356_4D41,), ALLOW), ((22,), ENOSYS), ((38,), ENOSYS)]),
    ("ioctl", {}, [((0, 0x5401), ALLOW), ((0, 0x5413 | UPPER), ALLOW), ((0, 0x5412), ENOSYS), ((0x5401, 0), ENOSYS)]),
    ("ioctl", {"devices": True}, [((0, 0x5412), ALLOW)]),
    ("kill", {}, [((1,), EPERM), ((0,), EPERM)]),
    ("tgkill", {}, [((1, 1), EPERM)]),
    ("kill", {"in_pid_namespace": True}, [((1,), ALLOW), ((2,), EPERM), ((1 | UPPER,), EPERM), ((2**64 - 1,), EPERM)]),
    ("tgkill", {"in_pid_namespace": True}, [((1, 5), ALLOW), ((5, 1), EPERM)]),
    ("socket", {}, [((1,), EPERM), ((2,), EPERM)]),
    ("socket", {"devices": True}, [((1,), ALLOW), ((2,), EPERM), ((16,), EPERM), ((1 | UPPER,), EPERM)]),
]


@pytest.mark.parametrize("machine", AUDIT_ARCHITECTURES)
@pytest.mark.parametrize(("name", "options", "cases"), BY_ARGUMENT)
def test_verdicts_that_depend_on_an_argument(machine, name, options, cases):
    program = compile_filter(**{"in_pid_namespace": False, "devices": False} | options, machine=machine)
    call = numbers(machine)[name]
    assert call is not None
    for arguments, expected in cases:
        assert verdict(program, AUDIT_ARCHITECTURES[machine], call, *arguments) == expected, arguments


X32_CALL = """
import ctypes

worker = fork(lambda: ctypes.CDLL(None).syscall(0x4000_0000 | 39))
send(os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]))
"""


def test_a_worker_that_uses_x32_numbers_is_killed(run):
    with run(X32_CALL) as program:
        assert program.receive() == -signal.SIGSYS


I386_CALL = """
import ctypes, mmap

def inside():
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov $20, %eax (getpid); int $0x80; ret
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()

worker = fork(inside)
send(os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the machine code is x86's")
def test_a_worker_that_makes_32_bit_calls_is_killed(run):
    with run(I386_CALL) as program:
        assert program.receive() in (-signal.SIGSYS, -signal.SIGSEGV)  # SIGSEGV if the kernel has no 32-bit calls
