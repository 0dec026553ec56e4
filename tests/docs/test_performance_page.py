"""The pages show the latest committed results."""

from __future__ import annotations

import re

import pytest
from benchmarks import publish, report, step
from benchmarks.hostile import report as hostile

from tests.docs.pages import ROOT, read, rows

RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        (
            "benchmarks/RESULTS.md",
            {
                "bench",
                "bench-cases",
                "first_effect",
                "fleet",
                "hooks",
                "hostile",
                "loops",
                "traces",
                "training",
                "trees",
            },
        ),
        ("docs/performance.md", {"bench-expect"}),
        ("docs/engines/vllm.md", {"vllm"}),
        ("README.md", {"bench-step"}),
    ],
)
def test_each_page_has_its_part_of_the_latest_results(page: str, names: set[str]) -> None:
    texts = step.texts(report.load(RESULTS)[0]) | hostile.texts(RESULTS / "hostile")
    folders = ("first_effect", "fleet", "hooks", "loops", "traces", "training", "trees", "vllm")
    texts |= {name: publish.text(report.load(RESULTS / name)[0]) for name in folders}
    shown = dict(re.findall(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", read(page), re.DOTALL))
    assert shown == {name: texts[name] for name in names}, (
        "run `make bench-publish`, `bench-{first-effect,fleet,hooks,loops,traces,training,trees,vllm}-publish` or "
        "`hostile-publish`"
    )


def test_the_picture_is_committed() -> None:
    assert (ROOT / step.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_no_row_was_wrong_beside_hostile_callers() -> None:
    """docs/performance.md says so."""
    assert "No row was wrong and no request was lost." in read("docs/performance.md")
    results = rows(read("benchmarks/RESULTS.md"), "| attacker |")
    assert results
    assert all(cells[-2:] == ["0", "0"] for cells in results)
