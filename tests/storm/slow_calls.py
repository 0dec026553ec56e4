"""A library that makes system calls of a server slow, and its wall clock wrong, by numbers in a shared file."""

from __future__ import annotations

import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NUMBERS = struct.Struct("=3q")
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Microseconds of each fork and each fsync, and seconds by which the wall clock is ahead. */
static const volatile long long *numbers;

__attribute__((constructor)) static void map(void) {
  const char *path = getenv("STORM_SLOW");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(0, 3 * sizeof *numbers, PROT_READ, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) numbers = mapped;
  close(file);
}

#define CALL(result, name, parameters, arguments, before, after)       \
  result name parameters {                                             \
    static result(*real) parameters;                                   \
    if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name);   \
    if (numbers) { before; }                                           \
    result value = real arguments;                                     \
    if (numbers) { after; }                                            \
    return value;                                                      \
  }

CALL(pid_t, fork, (void), (), usleep(numbers[0]), )
CALL(int, fsync, (int file), (file), usleep(numbers[1]), )
CALL(int, fdatasync, (int file), (file), usleep(numbers[1]), )
CALL(int, clock_gettime, (clockid_t clock, struct timespec *now), (clock, now), ,
     if (clock == CLOCK_REALTIME) now->tv_sec += numbers[2])
CALL(int, gettimeofday, (struct timeval *now, void *zone), (now, zone), , now->tv_sec += numbers[2])
CALL(time_t, time, (time_t *now), (now), , value += numbers[2]; if (now) *now = value)
"""


def build(folder: Path) -> str:
    """Compile the library. Returns its path; "" without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return ""
    change(folder)
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    return str(library) if subprocess.run(command, capture_output=True, check=False).returncode == 0 else ""


def change(folder: Path, fork: float = 0.0, fsync: float = 0.0, ahead: float = 0.0) -> None:
    """Set the seconds of each fork and each fsync, and by how many seconds the wall clock is ahead."""
    with (folder / "slow").open("r+b" if (folder / "slow").exists() else "wb") as file:
        file.write(_NUMBERS.pack(int(fork * 1e6), int(fsync * 1e6), int(ahead)))
