"""The paths that an interpreter reads while it runs: its own files, its packages, and the system's libraries.

For another interpreter, that one runs this module and prints them as JSON.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig

from logitport_sandbox.plan import SandboxError

# Packages that every worker imports. They are looked up by name: the folder of an editable install may not be on
# sys.path.
_PACKAGES = (
    *("logitport_proto", "logitport", "logitport_lint", "logitport_programs", "logitport_builtins"),
    *("logitport_session", "logitport_sandbox", "logitport_server", "dill", "numpy"),
)

# The dynamic linker, its cache, and the libraries that torch and Python's extension modules link to.
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")

_TIMEOUT_SECONDS = 60

# The text of `logitport.system.installation`, which cannot be imported here: that package imports numpy, whose threads
# keep a process from entering a namespace.
_HOW_TO_INSTALL = "install logitport for it from a clone of logitport: pip install '.[server]'"


@functools.cache
def readable_paths(python: str) -> tuple[str, ...]:
    """Return absolute paths of the files of the interpreter `python` and its packages.

    Raises SandboxError if it cannot be run, or lacks a package that workers need.
    """
    command = [python, "-I", "-c", f"import json; from {__name__} import own_paths; print(json.dumps(own_paths()))"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        message = (getattr(error, "stderr", None) or "").strip().rpartition("\n")[2]
        raise SandboxError(
            f"{python} cannot run workers: {message or error}; {_HOW_TO_INSTALL}, or name another Python"
        ) from error
    return tuple(json.loads(printed.stdout))


def own_paths() -> list[str]:
    """Return absolute paths of the files of this interpreter, each once, and none below another."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= set(sys.path) | set(_SYSTEM) | set(_links(sys.executable))
    found |= {os.path.join(sys.prefix, "pyvenv.cfg"), sysconfig.get_config_var("LIBDIR") or ""}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"it has no package {name}")
        found.add(os.path.dirname(os.path.dirname(spec.origin)))
    existing = {path for path in found if os.path.isabs(path) and os.path.exists(path)}
    return sorted(path for path in existing if not any(path.startswith(other + "/") for other in existing))


def _links(path: str) -> list[str]:
    """Return the path, and each path that it links to in turn."""
    links = [path]
    while os.path.islink(links[-1]):
        links.append(os.path.normpath(os.path.join(os.path.dirname(links[-1]), os.readlink(links[-1]))))
    return links
