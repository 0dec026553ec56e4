"""The examples, tables and commands of docs/kernels.md, run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport import ops
from logitport.ops import ApplyEdits, choice
from logitport.ops.apply_edits import PLATFORMS
from logitport_sandbox import SandboxError
from logitport_server.cli import doctor
from logitport_server.cli.root import run
from tests.plugin_process import run_beside_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kernels.md").read_text()


def section(title: str) -> str:
    return PAGE[PAGE.index(f"## {title}\n") :].partition("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(title), re.DOTALL)


def rows_of(title: str) -> list[list[str]]:
    """The first table of a section, cell by cell."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.fixture(autouse=True)
def restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(choice, "_replacement", None)
    yield
    ops.configure("all")


@pytest.fixture
def only_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_platforms_here", lambda: {"cpu"})
    monkeypatch.setattr(sys.modules["logitport.ops.apply_edits"], "find_spec", lambda package: object())


def test_the_files_are_those_of_the_op() -> None:
    table = {row[0].strip("`"): row[1].strip("`") for row in rows_of("Implementations of `apply_edits`")}
    assert all((ROOT / "client/logitport/ops/apply_edits" / file).is_file() for file in table)
    implemented = {method for method in map("forward_{}".format, ("native", *PLATFORMS)) if hasattr(ApplyEdits, method)}
    assert set(table.values()) - {"none"} == implemented


def test_every_platform_is_listed_with_its_fallback() -> None:
    assert [row[0].strip("`") for row in rows_of("How one is chosen")] == list(PLATFORMS)
    for platform, _, runs, fallback in rows_of("How one is chosen"):
        (first, *_) = re.findall(r"forward_(\w+)", runs)
        implements = type("Implements", (ApplyEdits,), {"requires": {}, f"forward_{first}": lambda *_: None})
        assert implements().choose(platform.strip("`"))[0] == first
        assert f"`forward_{ApplyEdits(with_kernels=False).choose(platform.strip('`'))[0]}`" == fallback


@pytest.mark.parametrize(("values", "runs"), rows_of("Configuration"))
def test_what_a_configuration_runs(values: str, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in [*re.findall(r"`(\w+)`", values), *([""] if "not set" in values else [])]:
        monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", value)
        ops.configure()
        assert f"`forward_{ops.current().choose('cpu')[0]}`" == runs


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    variable, *command = shlex.split(blocks("Configuration", "")[0])
    assert command == ["logitport", "serve"]
    monkeypatch.setenv(*variable.split("=", 1))
    ops.configure()
    assert ops.current().choose("cpu") == ("native", "custom_ops is none")


def test_configuring_an_engine() -> None:
    exec(blocks("Configuration", "python")[0], {})
    assert ops.current().choose("cpu") == ("native", "custom_ops is none")


def test_the_output_of_the_command(
    only_a_cpu: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks("What runs here", "")
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
    (manifest,) = blocks("Add an implementation out of tree", "toml")
    plugin, comparison = blocks("Add an implementation out of tree", "python")
    ((group, entry_point, module),) = re.findall(r'entry-points\."([\w.]+)"\]\n(\S+) = "(\w+)"', manifest)
    assert group == choice.PLUGINS
    assert f"`{module}.py`" in section("Add an implementation out of tree")
    program = f"{comparison}\nfrom logitport import ops\nprint(ops.list_implementations()[0].method)\n"
    ran = run_beside_plugin(tmp_path, plugin, program, module=module, entry_point=entry_point)
    assert ran.stdout == "fast_edits.FastEdits.forward_cpu\n", ran.stderr
