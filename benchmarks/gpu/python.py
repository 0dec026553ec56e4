"""A Python in which logitport is installed, made without pip and without network.

It is a virtual environment over the interpreter that runs this. `logitport` is an editable install: its source folders,
the command, and the metadata with its entry points. Wheels of packages that the interpreter lacks are unpacked beside
it.
"""

from __future__ import annotations

import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

from benchmarks.peer_files import ROOT, WHEELS

_SOURCES = tuple(ROOT / name for name in ("proto", "client", "server", "builtin_processors"))
_COMMAND = "#!{python}\nimport sys\nfrom {module} import {function}\n\nsys.exit({function}())\n"


def make(folder: Path, wheels: Path = WHEELS) -> Path:
    """Make the environment in a folder, which must not be in a temporary folder. Returns its interpreter.

    A sandboxed worker has a temporary folder of its own, and would not find the interpreter there.
    """
    venv.EnvBuilder(system_site_packages=True, clear=True, symlinks=True, with_pip=False).create(folder)
    python = folder / "bin" / "python"
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    unpacked = folder / "wheels"
    if any(wheels.glob("*.whl")):
        _unpack(sorted(wheels.glob("*.whl")), unpacked)
    project = read_project()
    _write_metadata(packages, project)
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        command = folder / "bin" / name
        command.write_text(_COMMAND.format(python=python, module=module, function=function))
        command.chmod(0o755)
    # The interpreter that runs this may be a virtual environment itself: its packages are added by their folders.
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    added = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(own) if Path(path).is_dir()]
    # Wheels come before the interpreter's packages: they replace those that are too old.
    (packages / "logitport.pth").write_text("\n".join((*map(str, _SOURCES), str(unpacked), *added)) + "\n")
    return python


def read_project() -> Any:
    """The table `project` of pyproject.toml. Exits on a Python that cannot read it."""
    try:
        import tomllib
    except ImportError:
        sys.exit("this needs Python 3.11 or later")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _unpack(wheels: list[Path], folder: Path) -> None:
    options = ("--no-index", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check")
    # Compiled packages of several versions of Python may be in the folder: pip chooses none by a file's name.
    tags = {f"cp{sys.version_info.major}{sys.version_info.minor}", "py3", "abi3"}
    fitting = [wheel for wheel in wheels if tags & set(wheel.stem.replace(".", "-").split("-"))]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, *fitting], check=True)


def _write_metadata(packages: Path, project: Any) -> None:
    folder = packages / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in groups.items()
    )
    (folder / "entry_points.txt").write_text("\n".join(sections))
