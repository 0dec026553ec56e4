"""docs/play.md: its first processor and its example run, its options exist, and its pictures are small."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport_play.command import Play
from logitport_play.models import open_models
from logitport_play.runs import ChosenProcessor, Runs, RunSpec
from logitport_play.watched_files import Files
from logitport_play.web.application import PlayApplication
from logitport_testing import StoryModel
from tests.docs.pages import ROOT, blocks, read
from tests.play import screenshots
from tests.play.browser import executable

if TYPE_CHECKING:
    from pathlib import Path

DOCS, PAGE = ROOT / "docs", read("docs/play.md")


def test_the_first_processor(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(screenshots.first_processor())
    files, models = Files([tmp_path / "my.py"]), open_models([])
    runs = Runs(models, files)
    state = PlayApplication(models, files, runs).state(b"")
    (entry,) = state["chain"]
    assert entry == {"processor": "my.py:Boost", "params": {"bias": 1.5}}
    spec = RunSpec("a", "story", "Once upon a time", [ChosenProcessor(**entry)], 5)
    result = runs.run(spec)
    while len(result.simulation.steps) < 5:
        result = runs.run(spec)
    runs.close()
    biased = [step.processors[0].biased.tolist() for step in result.simulation.steps]
    assert biased == [[], [], [], [9, 39], [9, 39]]
    model = StoryModel()
    assert [model.token_text(one) for one in (9, 39)] == [" king", " fox"]
    assert f"{model.vocab_size} words" in PAGE


def test_the_example_of_a_notebook() -> None:
    made: dict[str, Any] = {}
    example = blocks(PAGE)[1].rstrip()
    *lines, last = example.splitlines()
    exec("\n".join([*lines, f"result = {last}"]), made)
    assert "Once upon a time" in made["result"]._repr_html_()


def test_the_options() -> None:
    named = set(re.findall(r"--([a-z][a-z-]+)", PAGE)) - {"no-browser"}
    assert named == {name.replace("_", "-") for name in Play.model_fields} - {"files", "browser"}


def test_the_pictures() -> None:
    assert tuple(re.findall(r"!\[.+?\]\((.+?)\)", PAGE)) == tuple(
        sorted(screenshots.NAMES, key=lambda name: PAGE.index(f"({name})"))
    )
    for name in screenshots.NAMES:
        assert 20_000 < (DOCS / name).stat().st_size <= screenshots.MAX_BYTES


@pytest.mark.slow
@pytest.mark.skipif(executable() is None, reason="Chromium is not installed: apt-get install chromium")
def test_the_pictures_can_be_made_again(tmp_path: Path) -> None:
    screenshots.write(tmp_path)
    for name in screenshots.NAMES:
        made, stored = ((folder / name).read_bytes() for folder in (tmp_path, DOCS))
        assert len(made) <= screenshots.MAX_BYTES
        assert made[:24] == stored[:24]  # PNG's header: width and height
