"""Descriptions of layers, and the reasons why a machine lacks one."""

import ast
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import logitport_sandbox
from logitport_sandbox import LAYER_NAMES, LAYERS
from logitport_sandbox.layers import namespaces as namespaces_module
from logitport_sandbox.layers.bubblewrap import Bubblewrap
from logitport_sandbox.layers.landlock import Landlock
from logitport_sandbox.layers.namespaces import Namespaces
from logitport_sandbox.layers.seccomp import Seccomp, compile_filter
from logitport_sandbox.layers.system_calls import AUDIT_ARCHITECTURES
from logitport_sandbox.plan import SandboxPlan


def test_every_layer_is_described():
    assert len(set(LAYER_NAMES)) == len(LAYERS) == 5
    assert all(layer.does for layer in LAYERS)


def test_docs_describe_landlock_as_the_code_does():
    _, since = Landlock().does.split("; ")
    assert since.startswith("from Linux 6.7 on no TCP, from 6.12 on no signal")
    assert since in (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_the_package_imports_the_standard_library_alone():
    """Each process that it starts imports it first. One with the threads of numpy cannot enter a user namespace."""
    imported = set()
    for path in Path(logitport_sandbox.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            imported |= {name.partition(".")[0] for name in names}
    assert imported - sys.stdlib_module_names == {"logitport_sandbox"}


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        (None, "there is no bwrap; install the package bubblewrap"),
        ("sys.exit('bwrap: Unknown option --size')", "Unknown option --size"),
        # As in containers that forbid sethostname(2) to users other than root.
        ("sys.exit('bwrap: no name' * ('--hostname' in sys.argv) or 0)", None),
    ],
)
def test_bubblewrap_that_does_not_work_or_may_not_set_a_host_name(monkeypatch, tmp_path, program, missing):
    if program is not None:
        (tmp_path / "bwrap").write_text(f"#!{sys.executable}\nimport sys\n{program}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = Bubblewrap().missing()
    if missing is None:
        assert reason is None
        assert "--hostname" not in Bubblewrap().wrap(["true"], SandboxPlan(frozenset(), (), (), b""))
    else:
        assert missing in reason


def test_bubblewrap_hides_the_name_of_the_host():
    if Bubblewrap().missing() is not None:
        pytest.skip("bubblewrap does not work here")
    wrapped = Bubblewrap().wrap(["true"], SandboxPlan(frozenset(), (), (), b""))
    assert wrapped[wrapped.index("--hostname") + 1] == "logitport"


@pytest.mark.parametrize(
    ("switch", "off", "remedy"), namespaces_module.SWITCHES, ids=lambda value: value.rpartition("/")[2]
)
def test_namespaces_that_the_kernel_denies(monkeypatch, switch, off, remedy):
    def refused(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "PermissionError: [Errno 1] unshare: not permitted\n")

    monkeypatch.setattr(subprocess, "run", refused)
    monkeypatch.setattr(namespaces_module, "_read", lambda path: off if path == switch else "")
    assert Namespaces().missing() == f"PermissionError: [Errno 1] unshare: not permitted; it needs {remedy}"


def test_layers_that_the_system_the_kernel_or_the_architecture_lacks(monkeypatch):
    def refused():
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("logitport_sandbox.linux.landlock_version", refused)
    assert "it needs Linux 5.13" in Landlock().missing()
    for machine in ("riscv64", "i686", ""):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert f"there is no filter for {machine or 'this machine'}" in Seccomp().missing()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert all(layer.missing().endswith(" is a part of Linux") for layer in (Landlock(), Seccomp()))


def test_a_filter_consists_of_whole_instructions():
    filters = [
        compile_filter(in_pid_namespace=own, devices=devices, machine=machine)
        for own in (True, False)
        for devices in (True, False)
        for machine in AUDIT_ARCHITECTURES
    ]
    assert all(len(instructions) % 8 == 0 for instructions in filters)
    assert len(set(filters)) == len(filters)
