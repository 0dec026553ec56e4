"""The paths that an interpreter needs."""

import os
import sys
import sysconfig
from pathlib import Path

import torch

import logitport
import logitport_sandbox
import logitport_server
from logitport_sandbox.interpreter import readable_paths


def covers(paths, wanted):
    return any(Path(wanted).is_relative_to(path) for path in paths)


def test_python_its_packages_and_the_linker_are_included():
    paths = readable_paths(sys.executable)
    for wanted in (
        sys.executable,
        os.path.realpath(sys.executable),
        sysconfig.get_path("stdlib"),
        torch.__file__,
        logitport.__file__,
        logitport_server.__file__,
        logitport_sandbox.__file__,
    ):
        assert covers(paths, wanted), wanted


def test_nothing_else_is_included():
    paths = readable_paths(sys.executable)
    for unwanted in ("/etc/passwd", "/home", "/var", "/run", "/proc", "/usr/bin/env", str(Path.home())):
        assert not covers(paths, unwanted), unwanted


def test_no_path_is_below_another():
    paths = readable_paths(sys.executable)
    assert not [path for path in paths for other in paths if path != other and Path(path).is_relative_to(other)]
