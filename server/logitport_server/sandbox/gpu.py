"""What a worker that holds a GPU must be let have: device nodes, the driver's libraries, and what the driver reads.

Nothing of this was tried with a GPU yet. What CUDA asks for is what people report who had it run behind bubblewrap,
Landlock and seccomp: `/sys` and `/proc` to read, threads' names in `/proc` to write, `memfd_create`, Unix sockets and
pipes of its own, address space without a limit.
"""

from __future__ import annotations

import glob
import os
import stat

# NVIDIA's control node, its unified memory's, and one for each GPU.
_NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_LIBRARIES = ("libcuda.so", "libnvidia-")
_SYSTEM = "/sys"  # the driver does not start without

# Which GPUs there are, and in which order: a worker must count them as the server does.
_ORDER = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def device_nodes() -> tuple[str, ...]:
    """NVIDIA's device nodes on this machine; none where there is no driver."""
    found = {path for pattern in _NODES for path in glob.glob(pattern)}
    return tuple(sorted(path for path in found if stat.S_ISCHR(os.stat(path).st_mode)))


def readable_paths() -> tuple[str, ...]:
    """What the driver reads, beside the system's libraries: its own, from where this process has loaded them."""
    return (*_library_folders(), _SYSTEM)


def environment() -> dict[str, str]:
    """What a process that uses the driver finds in its environment."""
    kept = {name: os.environ[name] for name in _ORDER if name in os.environ}
    folders = _library_folders()
    # Torch is to look for GPUs without starting CUDA: a process that has started it cannot be forked.
    kept["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return kept | ({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})


def _library_folders() -> tuple[str, ...]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps}
    return tuple(sorted({f"/{os.path.dirname(path)}" for path in paths if _is_drivers(path)}))


def _is_drivers(path: str) -> bool:
    return os.path.basename(path).startswith(_LIBRARIES)
