"""Descriptions of layers, and the reasons why a machine lacks one."""

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from logitport_sandbox import LAYER_NAMES, LAYERS
from logitport_sandbox import namespaces as namespaces_module
from logitport_sandbox.bubblewrap import Bubblewrap
from logitport_sandbox.landlock import Landlock
from logitport_sandbox.namespaces import Namespaces
from logitport_sandbox.plan import SandboxPlan
from logitport_sandbox.seccomp import Seccomp, compile_filter
from logitport_sandbox.system_calls import AUDIT_ARCHITECTURES


def test_every_layer_is_described():
    assert len(set(LAYER_NAMES)) == len(LAYERS) == 5
    assert all(layer.does for layer in LAYERS)


def test_docs_describe_landlock_as_the_code_does():
    _, since = Landlock().does.split("; ")
    assert since.startswith("from Linux 6.7 on no TCP, from 6.12 on no signal")
    assert since in (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_the_layers_are_imported_without_numpy():
    """A process with the threads of its BLAS cannot enter a user namespace."""
    code = "import sys, logitport_sandbox; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0


def test_bubblewrap_is_not_installed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert Bubblewrap().missing() == "there is no bwrap; install the package bubblewrap"


def test_bubblewrap_does_not_work(monkeypatch, tmp_path):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('bwrap: Unknown option --size')\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = Bubblewrap().missing()
    assert "Unknown option --size" in reason
    assert "needs bubblewrap 0.6" in reason


def test_bubblewrap_may_not_set_a_host_name(monkeypatch, tmp_path):
    """As in containers that forbid sethostname(2) to users other than root."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('bwrap: no name' * ('--hostname' in sys.argv) or 0)\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Bubblewrap().missing() is None
    assert "--hostname" not in Bubblewrap().wrap(["true"], SandboxPlan(frozenset(), (), (), b""))


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


@pytest.mark.parametrize("layer", [Landlock(), Seccomp()], ids=["landlock", "seccomp"])
def test_layers_that_other_systems_lack(monkeypatch, layer):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert layer.missing() == f"{type(layer).__name__.replace('S', 's')} is a part of Linux"


def test_no_landlock_in_the_kernel(monkeypatch):
    def refused():
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("logitport_sandbox.linux.landlock_version", refused)
    assert Landlock().missing() == (
        "Operation not supported; it needs Linux 5.13, built with Landlock and started with it in lsm="
    )


@pytest.mark.parametrize("machine", ["riscv64", "i686", ""])
def test_no_filter_for_the_architecture(monkeypatch, machine):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    named = machine or "this machine"
    assert Seccomp().missing() == f"there is no filter for {named}; it needs x86_64 or aarch64"


def test_a_filter_consists_of_whole_instructions():
    filters = [
        compile_filter(in_pid_namespace=own, devices=devices, machine=machine)
        for own in (True, False)
        for devices in (True, False)
        for machine in AUDIT_ARCHITECTURES
    ]
    assert all(len(instructions) % 8 == 0 for instructions in filters)
    assert len(set(filters)) == len(filters)
