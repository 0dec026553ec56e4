"""The list of wheels, the files of peers, and the Python that `python -m benchmarks.gpu` makes."""

from __future__ import annotations

import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest
from benchmarks import peer_files
from benchmarks.gpu import python, wheels

if TYPE_CHECKING:
    from pathlib import Path


def test_packages_are_carried_with_their_packages_and_versions_unless_they_are_there() -> None:
    """pydantic needs pydantic-core; cryptography needs cffi, which needs pycparser. The version of grpcio matters."""
    versions = dict(requirement.split("==") for requirement in wheels.needed())
    assert not {*versions} & {"torch", "triton", "numpy", "transformers", "pytest", "logitport"}
    assert {"pydantic-core", "cffi", "pycparser", "xgrammar", "grpcio", "grpcio-health-checking"} < {*versions}


def test_files_of_peers_are_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "unpacked"
    for name in (*peer_files.SGLANG, *peer_files.VLLM):
        file = unpacked / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# a file\n")
    for variable in ("LOGITPORT_SGLANG", "LOGITPORT_VLLM"):
        monkeypatch.setenv(variable, str(unpacked))
    carried = tmp_path / "wheels"
    peer_files.carry(carried / "peers")
    assert sum(file.is_file() for file in carried.rglob("*")) == len(peer_files.SGLANG + peer_files.VLLM)
    for variable in ("LOGITPORT_SGLANG", "LOGITPORT_VLLM"):
        monkeypatch.delenv(variable)
    monkeypatch.setattr(peer_files, "WHEELS", carried)
    monkeypatch.setattr(peer_files, "ROOT", tmp_path)
    assert peer_files.folder_of("LOGITPORT_SGLANG") == carried / "peers" / "sglang"
    assert peer_files.folder_of("LOGITPORT_VLLM") == carried / "peers" / "vllm"


def test_peers_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGITPORT_SGLANG", raising=False)
    monkeypatch.setattr(peer_files, "WHEELS", tmp_path)
    monkeypatch.setattr(peer_files, "ROOT", tmp_path)
    with pytest.raises(peer_files.Missing, match="LOGITPORT_SGLANG"):
        peer_files.folder_of("LOGITPORT_SGLANG")
    with pytest.raises(peer_files.Missing, match="make test-peers"):
        peer_files.carry(tmp_path)


SHOWN = """
import importlib.metadata, logitport, logitport_server, sys
print(logitport.__file__, importlib.metadata.version("logitport"))
print(*(point.name for point in importlib.metadata.entry_points(group="logitport.wire_names")))
"""


@pytest.mark.slow
def test_the_python_has_logitport_and_the_packages_of_this_one(tmp_path: Path) -> None:
    made = python.make(tmp_path / "python", wheels=tmp_path)
    done = subprocess.run([made, "-I", "-c", SHOWN], capture_output=True, text=True, check=True, cwd=tmp_path)
    file, version, *points = done.stdout.split()
    assert file == str(peer_files.ROOT / "client/logitport/__init__.py")
    assert version == python.read_project()["version"]
    assert points == ["sglang.srt.sampling.custom_logit_processor"]
    command = made.with_name("logitport")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert version in done.stdout
    imported = subprocess.run(
        [made, "-c", "import torch, grpc; print(torch.__file__)"], capture_output=True, text=True, check=True
    )
    assert "site-packages" in imported.stdout


@pytest.mark.slow
def test_wheels_replace_packages_of_the_interpreter(tmp_path: Path) -> None:
    """A wheel of another version of Python is left out."""
    project = tmp_path / "wheels"
    project.mkdir()
    for name, tag in (("dill", "py3"), ("orjson", "cp27")):
        _write_wheel(project, name, tag)
    made = python.make(tmp_path / "python", wheels=project)
    code = "import dill, orjson; print(dill.__file__, getattr(dill, 'MARK', 0), getattr(orjson, 'MARK', 0))"
    done = subprocess.run([made, "-c", code], capture_output=True, text=True, check=True)
    file, *marks = done.stdout.split()
    assert file.startswith(str(tmp_path))
    assert marks == ["1", "0"]


def _write_wheel(folder: Path, name: str, tag: str) -> None:
    information = f"{name}-99.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-99.0-{tag}-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "MARK = 1\n")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
        wheel.writestr(f"{information}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
