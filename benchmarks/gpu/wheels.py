"""Fetches the wheels that the Python of a GPU machine lacks: `python -m benchmarks.gpu.wheels`, or `make gpu-wheels`.

The machine has no network, and a Python with torch, pytest and their like. What `logitport[server]` and the peers need
beyond these is found from the metadata of this environment's packages, and fetched at this environment's versions, for
Python 3.12 on x86-64. The files of SGLang and vLLM that are compared with are copied beside the wheels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import peer_files
from benchmarks.gpu.python import read_project
from benchmarks.peer_files import WHEELS

_PYTHON = "3.12"
_PLATFORMS = (28, 27, 24, 17, 34)
_ENVIRONMENT = {"python_version": _PYTHON, "python_full_version": f"{_PYTHON}.3"}  # else as here: Linux on x86-64
# The machine has these, what they depend on, hypothesis, pytest, pytest-timeout and transformers. It also has grpcio,
# protobuf and typing-extensions, which are carried nevertheless: others need these versions or later ones.
PRESENT = frozenset({"cloudpickle", "numpy", "prometheus-client", "rich", "torch"})
# Carried without what they depend on, as `make` installs them: the rest of it is torch, which is there.
_ALONE = {"apache-tvm-ffi", "xgrammar"}


def needed() -> list[str]:
    """NAME==VERSION of each wheel to carry, sorted. Exits if this environment lacks one of the packages."""
    names = {name for name, _ in _closure(server_requirements())} | _ALONE
    return [f"{name}=={_distribution(name).version}" for name in sorted(names)]


def server_requirements() -> list[str]:
    """The requirements of `logitport[server]`."""
    project = read_project()
    return [*project["dependencies"], *project["optional-dependencies"]["server"]]


def _closure(roots: Iterable[str]) -> set[tuple[str, str]]:
    """All packages that the roots need and that are not present, each with each of its extras, and with none."""
    found: set[tuple[str, str]] = set()
    left = [Requirement(root) for root in roots]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if name not in PRESENT and (name, extra) not in found:
                found.add((name, extra))
                left += _requirements(name, extra)
    return found


def _requirements(name: str, extra: str) -> Iterator[Requirement]:
    for text in _distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({**_ENVIRONMENT, "extra": extra}):
            yield requirement


def _distribution(name: str):  # type: ignore[no-untyped-def]
    try:
        return distribution(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is not installed here, so its version is unknown; run this with the Python of `make bench`")


def main() -> None:
    """Fetch the wheels, and copy the files of peers."""
    requirements = needed()
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir()
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in _PLATFORMS] + ["--platform=manylinux2014_x86_64"]
    options = ("--no-deps", "--only-binary=:all:", "--quiet", f"--python-version={_PYTHON}", "--implementation=cp")
    command = [sys.executable, "-m", "pip", "download", *options, *platforms, f"--dest={WHEELS}", *requirements]
    subprocess.run(command, check=True)
    peer_files.carry(WHEELS / "peers")
    print(f"{len(requirements)} wheels and the files of peers are in {WHEELS}")


if __name__ == "__main__":
    main()
