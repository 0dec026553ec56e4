"""What an interpreter reads while it runs: its own files, its packages, and the libraries of the system.

Run as a program it prints them as JSON, which is how one interpreter is asked by another.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig

from logitport_server.sandbox.plan import SandboxError

# What every worker imports. Its folder is asked for by name: an editable install need not stand on sys.path.
_PACKAGES = ("logitport_proto", "logitport", "logitport_builtins", "logitport_server", "dill", "numpy")

# The dynamic linker, its cache, and the libraries that torch and Python's extension modules link to.
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")

_ASK_SECONDS = 60


@functools.cache
def readable_paths(python: str) -> tuple[str, ...]:
    """Absolute paths of what the interpreter `python` and its packages are made of.

    Raises SandboxError if it cannot be run, or lacks a package that workers need.
    """
    command = [python, "-I", "-c", f"from {__name__} import _print_paths; _print_paths()"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or "").strip().rpartition("\n")[2]
        raise SandboxError(
            f"{python} cannot run workers: {said or error}; install logitport[server] into it, or name another Python"
        ) from error
    return tuple(json.loads(asked.stdout))


def _print_paths() -> None:
    sys.stdout.write(json.dumps(own_paths()))


def own_paths() -> list[str]:
    """Absolute paths of what this interpreter is made of; each stands once, and none lies below another."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= set(sys.path) | set(_SYSTEM) | set(_links(sys.executable))
    found |= {os.path.join(sys.prefix, "pyvenv.cfg"), sysconfig.get_config_var("LIBDIR") or ""}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"it has no package {name}")
        found.add(os.path.dirname(os.path.dirname(spec.origin)))
    there = {path for path in found if os.path.isabs(path) and os.path.exists(path)}
    return sorted(path for path in there if not any(path.startswith(other + "/") for other in there))


def _links(path: str) -> list[str]:
    """The path, and each one that it is a link to in turn."""
    links = [path]
    while os.path.islink(links[-1]):
        links.append(os.path.normpath(os.path.join(os.path.dirname(links[-1]), os.readlink(links[-1]))))
    return links
