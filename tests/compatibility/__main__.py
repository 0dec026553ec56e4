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

What cannot be right is refused, at the start or for the request, and says what to do:

| engine | refused | test |
|---|---|---|
"""


# What an engine's own ways make impossible, whichever the dialect.
REFUSED = {
    "SGLang": (
        "speculative decoding, pipeline parallelism, the overlap schedule without delayed sampling",
        "tests/engines/sglang/test_guard.py::test_what_does_not_start",
    ),
    "SGLang: beam search": (
        "the request",
        "tests/client/integrations/sglang/test_hook.py::test_beam_search_is_refused",
    ),
    "SGLang: strangers' processors": (
        "any string but logitport's",
        "tests/engines/sglang/test_guard.py::test_all_else_is_refused_too",
    ),
    "transformers continuous batching": (
        "asynchronous batching, CUDA graphs, compiled steps, tensor parallelism",
        "tests/client/integrations/transformers/test_continuous.py::test_what_cannot_be_right_is_refused_by_name",
    ),
    "llama.cpp": (
        "a llama-cpp-python that calls processors in another way",
        "tests/client/integrations/test_llama_cpp.py::test_another_llama_cpp_python_is_refused",
    ),
    "vLLM, second runner": (
        "batch-sharded sampling and the like",
        "tests/engines/vllm/v2/test_v2.py::test_ways_of_vllm_that_are_not_supported_are_refused_at_the_start",
    ),
}
CELLS = """
| cell | test |
|---|---|
"""


def page(cells: list[dict[str, str]]) -> str:
    """The page. Raises ValueError if a test has failed, for then there is nothing to publish."""
    failed = [cell["test"] for cell in cells if cell["outcome"] == "failed"]
    if failed:
        raise ValueError(f"failed: {', '.join(failed)}")
    passed = [cell for cell in cells if cell["outcome"] == "passed"]
    verdicts = {(cell["dialect"], cell["engine"]): cell["verdict"] for cell in passed}
    versions = {cell["engine"]: cell["version"] for cell in passed}
    engines = sorted(versions)
    head = [f"{engine}<br>{versions[engine]}" if versions[engine] else engine for engine in engines]
    rows = [[dialect, *(verdicts.get((dialect, engine), "—") for engine in engines)] for dialect in DIALECTS]
    lines = ["| " + " | ".join(row) + " |" for row in [["dialect", *head], ["---"] * (1 + len(engines)), *rows]]
    tests = sorted(f"| {cell['engine']}: {cell['dialect']} | `{cell['test']}` |" for cell in passed)
    refused = [f"| {engine} | {what} | `{test}` |" for engine, (what, test) in REFUSED.items()]
    return "\n".join([HEAD.rstrip("\n"), "", *lines, FOOT.rstrip("\n"), *refused, CELLS.rstrip("\n"), *tests, ""])


if __name__ == "__main__":
    recorded = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    PAGE.write_text(page(recorded))
