"""`python -m tests.compatibility CELLS.jsonl...`: write docs/compatibility.md from what the tests recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.compatibility.matrix import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
HEAD = """# Compatibility

<!-- Written by `make compatibility` from what the tests recorded; change the tests, not this page. -->

A processor written in the dialect on the left runs, through logitport, on the engine above. **same** means: 8 requests
that start and end at different steps, with up to 64 greedy tokens each, give the same tokens as a processor of the
engine's own kind with the same effect. **refused** means: the result would be wrong there, so logitport refuses with a
message.

The last three rows are chains of built-ins, compared with the same effect in plain Python. *phases* has a
[thinking budget, and a penalty that holds in the answer](reasoning.md); *loop guard* breaks
[loops](processor-reference.md#loops); *report* also compares the [report](reports.md) that reaches the caller, with
the events of two built-ins and a shipped class.

*SGLang, speculating* runs SGLang's scheduler and verification with drafts of NGRAM, and
[stand-ins for its kernels](engines/sglang.md#speculative-decoding). Without logitport, SGLang calls no processors
there: the reference is SGLang without drafts.

"""
FOOT = """
How each cell is run: [`tests/compatibility`](../tests/compatibility) has the processors and the tests of the example
engine and of transformers; `tests/engines` has the tests of the other engines. See also what
[each dialect](dialects.md) passes to a processor, and how [each engine](engines) is attached.

Configurations that would give wrong results are refused, at the start or per request, with a message that says what to
do:

| engine | refused | reason | test |
|---|---|---|---|
"""


# Cases that an engine's own design excludes, in every dialect.
REFUSED = {
    "SGLang": (
        "UNO",
        "SGLang itself refuses requests with processors",
        "tests/client/integrations/sglang/test_guard.py::test_engines_that_are_refused",
    ),
    "SGLang: overlap schedule": (
        "without delayed sampling; with drafts in a prefill engine",
        "SGLang calls processors before the last sampled id has joined the histories",
        "tests/engines/sglang/test_guard.py::test_unsupported_options_stop_the_start",
    ),
    "SGLang: beam search": (
        "the request",
        "SGLang passes processors one beam of each request",
        "tests/client/integrations/sglang/test_hook.py::test_beam_search_is_refused",
    ),
    "SGLang: prefill/decode disaggregation": (
        "requests with a class that reads logits",
        "SGLang passes only the ids from one engine to the other",
        "tests/client/integrations/sglang/test_disaggregation.py::test_state_that_does_not_follow_from_the_ids_is_refused",
    ),
    "SGLang: grammars with DFLASH, DSPARK": (
        "the request",
        "SGLang applies them after processors, and samples from rows without an id",
        "tests/client/integrations/sglang/test_block_speculation.py::test_a_grammar_of_sglang_is_refused",
    ),
    "SGLang: other processors": (
        "any string but logitport's",
        "SGLang would unpickle it in the process that owns the GPU",
        "tests/engines/sglang/test_guard.py::test_other_strings_are_refused",
    ),
    "transformers continuous batching": (
        "asynchronous batching, CUDA graphs, compiled steps, tensor parallelism",
        "transformers begins a step before the last ids are known, or replays it without Python; its ranks would "
        "differ after a late reply",
        "tests/client/integrations/transformers/test_continuous.py::test_unsupported_options_are_refused",
    ),
    "llama.cpp": (
        "a llama-cpp-python that calls processors in another way",
        "its calls have other arguments than those that logitport reads",
        "tests/client/integrations/test_llama_cpp.py::test_another_llama_cpp_python_is_refused",
    ),
    "MLX-LM": (
        "an mlx-lm that calls processors in another way",
        "its calls have other arguments than those that logitport reads",
        "tests/client/integrations/test_mlx_lm.py::test_an_unknown_mlx_lm_is_refused",
    ),
    "vLLM, second runner": (
        "batch-sharded sampling, adaptive verification",
        "vLLM gives each rank other rows, or drops rows of drafts",
        "tests/engines/vllm/v2/test_v2.py::test_unsupported_configurations_are_refused_at_the_start",
    ),
}
CELLS = """
| cell | test |
|---|---|
"""


def page(cells: list[dict[str, str]]) -> str:
    """Return the page. Raises ValueError if a test has failed: there is nothing to publish then."""
    failed = [cell["test"] for cell in cells if cell["outcome"] == "failed"]
    if failed:
        raise ValueError(f"failed: {', '.join(failed)}")
    passed = [cell for cell in cells if cell["outcome"] == "passed"]
    verdicts = {(cell["row"], cell["engine"]): cell["verdict"] for cell in passed}
    versions = {cell["engine"]: cell["version"] for cell in passed}
    engines = sorted(versions)
    head = [f"{engine}<br>{versions[engine]}" if versions[engine] else engine for engine in engines]
    rows = [[row, *(verdicts.get((row, engine), "—") for engine in engines)] for row in ROWS]
    lines = [
        "| " + " | ".join(row) + " |" for row in [["dialect or chain", *head], ["---"] * (1 + len(engines)), *rows]
    ]
    tests = sorted(f"| {cell['engine']}: {cell['row']} | `{cell['test']}` |" for cell in passed)
    refused = [f"| {engine} | {what} | {why} | `{test}` |" for engine, (what, why, test) in REFUSED.items()]
    return "\n".join([HEAD.rstrip("\n"), "", *lines, FOOT.rstrip("\n"), *refused, CELLS.rstrip("\n"), *tests, ""])


if __name__ == "__main__":
    recorded = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    PAGE.write_text(page(recorded))
