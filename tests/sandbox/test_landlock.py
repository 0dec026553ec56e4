"""The rights that are denied with each version of Landlock: only rights that the version has."""

import os

import pytest

from logitport_sandbox import linux
from logitport_sandbox.layers.landlock import Landlock
from logitport_sandbox.plan import SandboxPlan, WorkerLimits

# Rights on files, on TCP, and scopes.
DENIED = {
    1: (0x1FFF, 0b00, 0b00),
    2: (0x3FFF, 0b00, 0b00),  # REFER
    3: (0x7FFF, 0b00, 0b00),  # TRUNCATE
    4: (0x7FFF, 0b11, 0b00),
    5: (0xFFFF, 0b11, 0b00),  # IOCTL_DEV
    6: (0xFFFF, 0b11, 0b11),
    7: (0xFFFF, 0b11, 0b11),
    99: (0xFFFF, 0b11, 0b11),
}
READ_FILE, READ_FOLDER, READ_AND_WRITE = 0x4, 0xC, 0x6
EXECUTE_AND_NODES = 0x1 | 0x40 | 0x800


class Kernel:
    """Replaces a kernel of this version. Records the calls, and checks them as the kernel does."""

    def __init__(self, monkeypatch, version):
        self.denied = ()
        self.allowed = {}
        self.restricted = False
        monkeypatch.setattr(linux, "landlock_version", lambda: version)
        monkeypatch.setattr(linux, "landlock_ruleset", self.make)
        monkeypatch.setattr(linux, "landlock_allow", self.allow)
        monkeypatch.setattr(linux, "landlock_restrict", self.restrict)

    def make(self, *rights):
        self.denied = rights
        self.ruleset = os.open("/dev/null", os.O_RDONLY)
        return self.ruleset

    def allow(self, ruleset, path, rights):
        assert ruleset == self.ruleset
        assert rights
        assert rights & ~self.denied[0] == 0
        self.allowed[path] = rights

    def restrict(self, ruleset):
        assert ruleset == self.ruleset
        self.restricted = True


IOCTL_DEV = 0x8000


@pytest.mark.parametrize("version", DENIED)
def test_the_rules_for_each_version(monkeypatch, version):
    kernel = Kernel(monkeypatch, version)
    Landlock().apply(SandboxPlan(frozenset(), ("/usr/lib", "/etc/passwd"), (), b""), WorkerLimits())
    assert kernel.denied == DENIED[version]
    assert kernel.restricted
    files = DENIED[version][0]
    devices = dict.fromkeys(("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"), READ_AND_WRITE)
    private = dict.fromkeys(("/tmp", "/dev/shm"), files & ~EXECUTE_AND_NODES)
    assert kernel.allowed == {"/usr/lib": READ_FOLDER, "/etc/passwd": READ_FILE} | devices | private
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kernel.ruleset)
    kernel.allowed.clear()
    Landlock().apply(SandboxPlan(frozenset({"namespaces"}), (), ("/dev/full",), b""), WorkerLimits())
    assert kernel.allowed["/dev/full"] == READ_AND_WRITE | (IOCTL_DEV & files)
    assert kernel.allowed["/proc"] == READ_FOLDER | 0x2
    assert kernel.allowed.keys() - {"/dev/full", "/proc"} == devices.keys()


def test_a_failure_names_the_call_and_the_path(tmp_path):
    with pytest.raises(OSError, match="landlock /: Bad file descriptor"):
        linux.landlock_allow(-1, "/", READ_FILE)
    with pytest.raises(FileNotFoundError):
        linux.landlock_allow(-1, str(tmp_path / "nothing"), READ_FILE)
