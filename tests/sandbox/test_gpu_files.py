"""Additional access of a worker that holds a GPU. No GPU is needed: another device node takes its place."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from logitport_sandbox import LAYERS, gpu_files
from logitport_sandbox.verification.probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = ("/dev/full",)

# As listed in docs/security.md.
LET_THROUGH = {
    "Look around in /proc",
    "Open a socket of any kind",
    "Take more shared memory than it may map",
    "Open files without end",
}


@pytest.fixture
def all_layers(need_layers: Callable[..., None]) -> None:
    need_layers(*(layer.name for layer in LAYERS))


@pytest.mark.slow
def test_attempts_that_a_worker_with_a_gpu_gets_through(all_layers: None) -> None:
    """All other attempts are stopped, as in other workers."""
    assert {outcome.what for outcome in probe(devices=NODES) if not outcome.stopped} == LET_THROUGH


INSIDE = """
import mmap, threading

NO_RESERVE = 0x4000

def name_a_thread():
    name = os.open(f"/proc/self/task/{threading.get_native_id()}/comm", os.O_RDWR)  # as libc does it
    os.write(name, b"of CUDA")
    return os.pread(name, 100, 0).decode().strip()

def tried(call):
    try:
        return call()
    except OSError as error:
        return error.strerror

def inside():
    reads, writes = os.pipe()
    return {
        "name": tried(name_a_thread),
        "memory": os.memfd_create("of CUDA") >= 0,
        "reserved": len(mmap.mmap(-1, 1 << 45, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE, prot=0)) >> 45,
        "unix": tried(lambda: socket.socket(socket.AF_UNIX).bind(b"\\0of CUDA")),
        "internet": tried(lambda: socket.socket(socket.AF_INET).fileno()),
        "system": sorted(os.listdir("/sys"))[:1],
        "environment": {name: os.environ.get(name) for name in
            ("CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK")},
    }

fork(inside)
"""


def test_a_worker_has_what_the_driver_needs(
    run: Callable[..., Any], all_layers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with run(INSIDE, devices=NODES) as program:
        assert program.receive() == {
            "name": "of CUDA",
            "memory": True,
            "reserved": 1,
            "unix": None,
            "internet": os.strerror(1),
            "system": sorted(os.listdir("/sys"))[:1],
            "environment": {"CUDA_VISIBLE_DEVICES": "3,1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        }


WITHOUT = """
def inside():
    return [os.path.exists("/sys"), sorted(set(os.environ) & {"CUDA_VISIBLE_DEVICES"}), os.listdir("/proc")]

fork(inside)
"""


def test_other_workers_have_none_of_it(
    run: Callable[..., Any], all_layers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with run(WITHOUT) as program:
        received = program.receive()
    assert received == [False, [], []] or received.startswith("PermissionError"), received


def test_device_nodes_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with socket.socket(socket.AF_UNIX) as no_node:
        no_node.bind(str(tmp_path / "socket"))
        monkeypatch.setattr(gpu_files, "_NODES", (f"{tmp_path}/*", "/dev/nul[l]", "/dev/zero", "/dev/nowhere*"))
        assert gpu_files.device_nodes() == ("/dev/null", "/dev/zero")


def test_libraries_are_found_where_this_process_loads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_files, "_LIBRARIES", ("libc.so",))
    folders = gpu_files.readable_paths()[:-1]
    assert len(folders) == 1
    assert os.path.exists(f"{folders[0]}/libc.so.6")
    assert gpu_files.environment()["LD_LIBRARY_PATH"] == folders[0]
    monkeypatch.setattr(gpu_files, "_LIBRARIES", ("no such library",))
    assert gpu_files.readable_paths() == ("/sys",)
    assert "LD_LIBRARY_PATH" not in gpu_files.environment()
