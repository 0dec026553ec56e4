"""Files that a worker with a GPU needs: device nodes, the driver's libraries, and the files that the driver reads.

None of this has been tested with a GPU yet. The list follows reports of CUDA inside bubblewrap, Landlock and seccomp:
read access to `/sys` and `/proc`, write access to thread names in `/proc`, `memfd_create`, its own Unix sockets and
pipes, and unlimited address space.
"""

from __future__ import annotations

import glob
import os
import stat

# NVIDIA's nodes: one for each GPU, one for control, and the nodes of unified memory.
_NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_LIBRARIES = ("libcuda.so", "libnvidia-")
_SYSTEM = "/sys"  # the driver does not start without it

# Which GPUs are visible, and their order: a worker must number them as the server does.
_ORDER = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def device_nodes() -> tuple[str, ...]:
    """Return NVIDIA's device nodes on this machine; none without a driver."""
    found = {path for pattern in _NODES for path in glob.glob(pattern)}
    return tuple(sorted(path for path in found if stat.S_ISCHR(os.stat(path).st_mode)))


def readable_paths() -> tuple[str, ...]:
    """Return what the driver reads besides the system's libraries: its own, from where this process loaded them."""
    return (*_library_folders(), _SYSTEM)


def environment() -> dict[str, str]:
    """Return the environment variables of a process that uses the driver."""
    kept = {name: os.environ[name] for name in _ORDER if name in os.environ}
    folders = _library_folders()
    # Torch must detect GPUs without initializing CUDA: a process that has initialized it cannot be forked.
    kept["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return kept | ({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})


def _library_folders() -> tuple[str, ...]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps}
    return tuple(
        sorted({f"/{os.path.dirname(path)}" for path in paths if os.path.basename(path).startswith(_LIBRARIES)})
    )
