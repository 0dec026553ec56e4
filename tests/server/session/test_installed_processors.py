"""Installed processors: by module path, by entry point, by object."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from logitport import CustomLogitProcessor, EditProcessor
from logitport.errors import InvalidArgument
from logitport_builtins import BUILTINS
from logitport_server.config import ServerConfig
from logitport_session.processor_sources import installed

if TYPE_CHECKING:
    from pathlib import Path


class Mine(CustomLogitProcessor):
    class Inner(CustomLogitProcessor):
        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            return logits

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


@pytest.fixture
def our_team(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("our_team")
    module.Mine, module.number = Mine, 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "our_team", module)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str) -> None:
    """Create a distribution with these entry points on the import path."""
    info = folder / "our_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(folder)


def test_an_abstract_class() -> None:
    class Unfinished(EditProcessor):
        pass

    with pytest.raises(InvalidArgument, match="Unfinished is abstract; define edit"):
        installed.load(given=[Unfinished])


def test_by_default_only_the_built_ins_are_installed() -> None:
    assert installed.load() == BUILTINS


@pytest.mark.usefixtures("our_team")
def test_by_module_path() -> None:
    found = installed.load(["our_team:Mine", "our_team:Mine.Inner", "our_team:Mine"])
    assert found == {**BUILTINS, "our_team:Mine": Mine, "our_team:Mine.Inner": Mine.Inner}


def test_by_object() -> None:
    def ban(output_ids: Any, logits: Any) -> Any:
        return logits

    found = installed.load(given=[Mine, ban])
    assert found[f"{__name__}:Mine"] is Mine
    assert found[f"{__name__}:test_by_object.<locals>.ban"] is ban


@pytest.mark.parametrize("processor", [Mine(), partial(Mine)])
def test_a_dialect_of_classes_refuses_instances(processor: Any) -> None:
    with pytest.raises(InvalidArgument, match="the dialect 'sglang' needs a class"):
        installed.load(given=[processor])


@pytest.mark.usefixtures("our_team")
def test_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = "[logitport.processors]\nours = our_team:Mine\n[vllm.logits_processors]\ntheirs = our_team:Mine\n"
    install(tmp_path, monkeypatch, groups)
    assert installed.load() == {**BUILTINS, "ours": Mine}
    assert installed.load(with_entry_points=False) == BUILTINS


@pytest.mark.usefixtures("our_team")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Mine", "--logits-processors no_such_module:Mine: ModuleNotFoundError.*install what"),
        ("our_team:Yours", "--logits-processors our_team:Yours: our_team has no Yours$"),
        ("our_team:Mien", r"our_team has no Mien; did you mean Mine\?"),
        ("our_team:Mine.Iner", r"our_team has no Mine\.Iner; did you mean Inner\?"),
        ("our_team:number", "--logits-processors our_team:number: a int is no processor"),
    ],
)
def test_a_path_that_cannot_be_loaded(path: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        installed.load([path])


@pytest.mark.usefixtures("our_team")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("thinking_budget = our_team:Mine", "'thinking_budget' is taken by another processor; give it another name"),
        ("our/own = our_team:Mine", "'our/own' has a slash"),
        ("ours = our_team:Yours", "entry point 'ours' of our-package .*, which is our_team:Yours"),
    ],
)
def test_an_unusable_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str) -> None:
    install(tmp_path, monkeypatch, f"[logitport.processors]\n{line}\n")
    with pytest.raises(InvalidArgument, match=message):
        installed.load()


@pytest.mark.parametrize("path", ["", "module", "module:", ":Class", "a b:Class", "module:Class()", "module:Class:"])
def test_an_invalid_path_is_refused_by_the_configuration(path: str) -> None:
    with pytest.raises(ValidationError, match=r"is not module\.path:Class"):
        ServerConfig(logits_processors=[path])
