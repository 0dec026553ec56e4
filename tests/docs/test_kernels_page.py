"""The examples, tables and commands of docs/kernels.md, run, and the files of its op in docs/architecture.md."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from logitport import ops
from logitport.ops import ApplyEdits, implementations
from logitport.ops.apply_edits import PLATFORMS
from logitport_sandbox import SandboxError
from logitport_server.cli import doctor
from logitport_server.cli.root import run
from tests.docs.pages import ROOT, blocks, read, rows, section
from tests.plugin_process import run_beside_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = read("docs/kernels.md")


@pytest.fixture(autouse=True)
def restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(implementations, "_replacement", None)
    yield
    ops.configure("all")


@pytest.fixture
def only_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "_platforms_here", lambda: {"cpu"})
    monkeypatch.setattr(sys.modules["logitport.ops.apply_edits"], "find_spec", lambda package: object())


def test_the_files_are_those_of_the_op() -> None:
    adding = section(read("docs/architecture.md"), "How to add an implementation of `apply_edits`")
    table = {row[0].strip("`"): row[1].strip("`") for row in rows(adding)}
    assert all((ROOT / "client/logitport/ops/apply_edits" / file).is_file() for file in table)
    implemented = {method for method in map("forward_{}".format, ("native", *PLATFORMS)) if hasattr(ApplyEdits, method)}
    assert set(table.values()) - {"none"} == implemented


def test_every_platform_is_listed_with_its_fallback() -> None:
    assert [row[0].strip("`") for row in rows(section(PAGE, "How one is chosen"))] == list(PLATFORMS)
    for platform, _, runs, fallback in rows(section(PAGE, "How one is chosen")):
        (first, *_) = re.findall(r"forward_(\w+)", runs)
        implements = type("Implements", (ApplyEdits,), {"requires": {}, f"forward_{first}": lambda *_: None})
        assert implements().choose(platform.strip("`"))[0] == first
        assert f"`forward_{ApplyEdits(with_kernels=False).choose(platform.strip('`'))[0]}`" == fallback


@pytest.mark.parametrize(("values", "runs"), rows(section(PAGE, "Configuration")))
def test_what_a_configuration_runs(values: str, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in [*re.findall(r"`(\w+)`", values), *([""] if "not set" in values else [])]:
        monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", value)
        ops.configure()
        assert f"`forward_{ops.current().choose('cpu')[0]}`" == runs


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    variable, *command = shlex.split(blocks(section(PAGE, "Configuration"), "")[0])
    assert command == ["logitport", "serve"]
    monkeypatch.setenv(*variable.split("=", 1))
    ops.configure()
    assert ops.current().choose("cpu") == ("native", "custom_ops is none")


def test_configuring_an_engine() -> None:
    exec(blocks(section(PAGE, "Configuration"), "python")[0], {})
    assert ops.current().choose("cpu") == ("native", "custom_ops is none")


def test_the_output_of_the_command(
    only_a_cpu: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks(section(PAGE, "What runs here"), "")
    command, _, output = block.partition("\n")
    _, variable, *arguments = shlex.split(command)
    monkeypatch.setenv("COLUMNS", str(max(map(len, output.splitlines()))))
    monkeypatch.setenv(*variable.split("=", 1))
    monkeypatch.setattr(doctor, "assess", ends)
    with pytest.raises(SystemExit, match="no sandbox"):
        run(arguments[1:])
    assert output in capsys.readouterr().out


def ends(**_: object) -> None:
    raise SandboxError("no sandbox")


@pytest.mark.slow
def test_an_implementation_out_of_tree(tmp_path: Path) -> None:
    (manifest,) = blocks(section(PAGE, "Add an implementation out of tree"), "toml")
    plugin, comparison = blocks(section(PAGE, "Add an implementation out of tree"), "python")
    ((group, entry_point, module),) = re.findall(r'entry-points\."([\w.]+)"\]\n(\S+) = "(\w+)"', manifest)
    assert group == implementations.PLUGINS
    assert f"`{module}.py`" in section(PAGE, "Add an implementation out of tree")
    program = f"{comparison}\nfrom logitport import ops\nprint(ops.list_implementations()[0].method)\n"
    ran = run_beside_plugin(tmp_path, plugin, program, module=module, entry_point=entry_point)
    assert ran.stdout == "fast_edits.FastEdits.forward_cpu\n", ran.stderr
