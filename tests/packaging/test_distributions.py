"""Distributions that `make dist` builds: their content."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from logitport.core.compiled import VARIABLE
from tests.packaging.bare_environment import SECONDS, TEST_SECONDS, metadata
from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Distributions

pytestmark = pytest.mark.timeout(TEST_SECONDS)

PACKAGES = (
    "logitport",
    "logitport_builtins",
    "logitport_core",
    "logitport_fleet",
    "logitport_lint",
    "logitport_play",
    "logitport_programs",
    "logitport_proto",
    "logitport_recording",
    "logitport_runner",
    "logitport_sandbox",
    "logitport_server",
    "logitport_session",
    "logitport_testing",
)


def test_the_wheel_is_complete(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {*wheel.namelist()}
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {
        path.partition("/")[2]
        for path in tracked.split("\0")
        if re.match(r"(?:client|server|builtin_processors|proto|core)/logitport(?:_\w+)?/", path)
    }
    assert {f"{name}/py.typed" for name in PACKAGES} <= expected
    assert {path for path in expected if not path.endswith(".proto")} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {*PACKAGES}


def test_the_sdist_builds_the_wheel_again(distributions: Distributions, tmp_path: Path) -> None:
    with tarfile.open(distributions.sdist) as sdist:
        top = {name.split("/")[1] for name in sdist.getnames() if "/" in name}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "proto", "client", "server", "core"} <= top
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(distributions.sdist)]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, env={**os.environ, VARIABLE: "1"})
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(distributions.wheel) as other:
        assert {info.filename: info.CRC for info in one.infolist()} == {
            info.filename: info.CRC for info in other.infolist()
        }


def test_the_version_is_in_one_place(distributions: Distributions) -> None:
    (version,) = re.findall(r'^version = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert metadata(distributions)["Version"] == version
    assert f"-{version}-" in distributions.wheel.name
    for package in PACKAGES:
        for folder in ROOT.glob(f"*/{package}"):
            for file in folder.rglob("*.py"):
                assert f'"{version}"' not in file.read_text(), file


def test_the_sdist_has_the_sources_of_the_core(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    command = ["git", "ls-files", "-z", "core"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {path for path in tracked.split("\0") if path} <= names
    assert not [name for name in names if name.startswith("core/build/") or name.endswith(".so")]
