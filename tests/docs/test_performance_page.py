"""README.md and docs/performance.md show the latest committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import publish, report, traces
from benchmarks.fleet import publish as fleet
from benchmarks.hostile import publish as hostile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("page", "names"), [(PAGE, {"bench", "bench-cases", "fleet", "hostile"}), (README, {"bench-step"})]
)
def test_each_page_has_its_part_of_the_latest_results(page: str, names: set[str]) -> None:
    results = ROOT / "benchmarks" / "results"
    texts = publish.texts(report.load_latest(results)) | hostile.texts(results / "hostile")
    texts |= fleet.texts(results / "fleet")
    shown = dict(re.findall(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", page, re.DOTALL))
    assert shown == {name: texts[name] for name in names}, (
        "run `make bench-publish`, `hostile-publish` or `bench-fleet-publish`"
    )


def test_the_page_of_vllm_shows_the_latest_results_of_its_hook() -> None:
    results = ROOT / "benchmarks" / "results" / "vllm"
    latest = publish.bar_table(report.load_latest(results)) if results.is_dir() else ""
    page = (ROOT / "docs" / "engines" / "vllm.md").read_text()
    assert f"<!-- vllm:begin -->\n{latest}<!-- vllm:end -->" in page, "run `make bench-vllm-publish`"


def test_the_table_of_traces_is_the_latest() -> None:
    latest = max((ROOT / "benchmarks" / "results" / "traces").iterdir(), key=lambda path: path.stem[-10:])
    assert traces.table(json.loads(latest.read_text())) in PAGE, "copy what `make bench-traces` prints"


def test_the_picture_is_committed() -> None:
    assert (ROOT / publish.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_every_command_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`|\()make ([a-z][a-z-]+)", PAGE + README, re.MULTILINE):
        assert f"\n{target}:" in makefile, target
