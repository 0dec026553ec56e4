"""The pages show the latest committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import publish, report, step
from benchmarks.hostile import report as hostile

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "performance.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/performance.md", {"bench", "bench-cases", "fleet", "hostile", "traces"}),
        ("docs/engines/vllm.md", {"vllm"}),
        ("README.md", {"bench-step"}),
    ],
)
def test_each_page_has_its_part_of_the_latest_results(page: str, names: set[str]) -> None:
    texts = step.texts(report.load(RESULTS)[0]) | hostile.texts(RESULTS / "hostile")
    texts |= {name: publish.text(report.load(RESULTS / name)[0]) for name in ("fleet", "traces", "vllm")}
    shown = dict(re.findall(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", (ROOT / page).read_text(), re.DOTALL))
    assert shown == {name: texts[name] for name in names}, (
        "run `make bench-publish`, `bench-{fleet,traces,vllm}-publish` or `hostile-publish`"
    )


def test_the_picture_is_committed() -> None:
    assert (ROOT / step.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_every_command_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`|\()make ([a-z][a-z-]+)", PAGE + README, re.MULTILINE):
        assert f"\n{target}:" in makefile, target
