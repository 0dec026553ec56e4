"""A library that makes system calls of a server slow, while a file says so."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Sleep for the microseconds in the file STORM_SLOW, if it exists. */
static void slow(void) {
  const char *path = getenv("STORM_SLOW");
  char text[32] = {0};
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  if (read(file, text, sizeof text - 1) > 0) usleep(atoi(text));
  close(file);
}

#define SLOW(result, name, parameters, arguments)                 \
  result name parameters {                                        \
    static result(*real) parameters;                              \
    if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
    slow();                                                       \
    return real arguments;                                        \
  }

SLOW(pid_t, fork, (void), ())
SLOW(int, fsync, (int file), (file))
SLOW(int, fdatasync, (int file), (file))
"""


def build(folder: Path) -> str:
    """Compile the library. Returns its path; "" without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return ""
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    return str(library) if subprocess.run(command, capture_output=True, check=False).returncode == 0 else ""
