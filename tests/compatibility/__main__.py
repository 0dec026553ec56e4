"""`python -m tests.compatibility CELLS.jsonl...`: write docs/compatibility.md from what the tests recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.compatibility.effect import DIALECTS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
HEAD = """# Compatibility

<!-- Written by `make compatibility` from what the tests recorded; change the tests, not this page. -->

One artifact, every engine: a processor written in the dialect on the left runs, through logitport, on the engine
above. **same** means: 8 requests that come and go, 64 greedy tokens, and the tokens are those of the engine with a
processor of its own kind that does the same. **refused** means that it cannot be right there, and says so by name.

"""
FOOT = """
How each cell is run: [`tests/compatibility`](../tests/compatibility) has the processors, `tests/engines` and
`tests/examples` the engines. What each dialect is given: [dialects](dialects.md). How each engine is attached:
[engines](engines).

| cell | test |
|---|---|
"""


def page(cells: list[dict[str, str]]) -> str:
    """The page. Raises ValueError if a test has failed, for then there is nothing to publish."""
    failed = [cell["test"] for cell in cells if cell["outcome"] == "failed"]
    if failed:
        raise ValueError(f"failed: {', '.join(failed)}")
    told = {(cell["dialect"], cell["engine"]): cell for cell in cells if cell["outcome"] == "passed"}
    engines = sorted({engine for _, engine in told})
    versions = {cell["engine"]: cell["version"] for cell in told.values()}
    head = [f"{engine}<br>{versions[engine]}" if versions[engine] else engine for engine in engines]
    lines = [f"| dialect | {' | '.join(head)} |", "|---|" + "---|" * len(engines)]
    for dialect in DIALECTS:
        verdicts = [told[dialect, engine]["verdict"] if (dialect, engine) in told else "—" for engine in engines]
        lines.append(f"| {dialect} | {' | '.join(verdicts)} |")
    tests = [f"| {engine}: {dialect} | `{cell['test']}` |" for (dialect, engine), cell in sorted(told.items())]
    return HEAD + "\n".join(lines) + "\n" + FOOT + "\n".join(tests) + "\n"


if __name__ == "__main__":
    recorded = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    PAGE.write_text(page(recorded))
