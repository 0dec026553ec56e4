"""The clients under test: how each driver is built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.conformance.recording import PYTHON_DRIVER
from tests.core.library.c_session import CORE, build

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent / "drivers"
ROOT = HERE.parents[2]
NODE = ROOT / "examples" / "node"
BUILD = CORE / "build" / "conformance"


class Client(NamedTuple):
    """A client.

    Attributes:
        name: for reports.
        build: builds the driver, and returns its command.
        is_local: whether it uses the local transport.
        embeds: whether it has sessions without a server.
    """

    name: str
    build: Callable[[], list[str]]
    is_local: bool
    embeds: bool

    def variables(self) -> dict[str, str]:
        """Variables that the driver needs."""
        return {"GODEBUG": "cgocheck=2"} if self.name == "Go" else {}


@cache
def client_command(client: Client) -> list[str]:
    """Build a driver, and return its command."""
    return client.build()


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command of a build."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def installed_library() -> Path:
    """Build liblogitport and install it in a folder, which is returned."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("liblogitport needs a C++ compiler")
    pytest.importorskip("cmake")
    prefix = BUILD / "prefix"
    folder = build(CORE / "build" / "library")
    run([sys.executable, "-m", "cmake", "--install", str(folder), "--prefix", str(prefix)], ROOT)
    return prefix


def _python() -> list[str]:
    return [*PYTHON_DRIVER, "auto"]


def _python_grpc() -> list[str]:
    return [*PYTHON_DRIVER, "grpc"]


def _c() -> list[str]:
    prefix = installed_library()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (library,) = prefix.glob("lib*/liblogitport.so")
    program = BUILD / "driver_c"
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
        "-O1",
        f"-I{prefix / 'include'}",
    ]
    links = [f"-L{library.parent}", "-llogitport", f"-Wl,-rpath,{library.parent}"]
    run([compiler, *flags, str(HERE / "driver.c"), "-o", str(program), *links], ROOT)
    return [str(program)]


def go_variables() -> dict[str, str]:
    """Variables for commands of Go, with the library and without a network. Skips without Go."""
    if shutil.which("go") is None or shutil.which("pkg-config") is None:
        pytest.skip("needs Go and pkg-config")
    prefix = installed_library()
    (description,) = prefix.glob("lib*/pkgconfig/logitport.pc")
    return {
        "PKG_CONFIG_PATH": str(description.parent),
        "CGO_LDFLAGS": f"-Wl,-rpath,{description.parents[1]}",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
        "GOCACHE": str(BUILD / "go"),
    }


def _go() -> list[str]:
    variables = go_variables()
    program = BUILD / "driver_go"
    run(["go", "build", "-o", str(program), "."], HERE / "go", **variables)
    return [str(program)]


def install_node_package() -> tuple[str, str]:
    """Install what the package of JavaScript needs, in its folder. Returns the paths of node and npm; skips without."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm")
    installed, lock = NODE / "node_modules" / ".package-lock.json", NODE / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run([npm, "ci"], NODE)
    return node, npm


def _node() -> list[str]:
    node, _ = install_node_package()
    return [node, str(HERE / "driver.mjs")]


CLIENTS = [
    Client("Python", _python, is_local=True, embeds=True),
    Client("Python by gRPC", _python_grpc, is_local=False, embeds=False),
    Client("JavaScript", _node, is_local=False, embeds=False),
    Client("C", _c, is_local=True, embeds=True),
    Client("Go", _go, is_local=True, embeds=True),
]
