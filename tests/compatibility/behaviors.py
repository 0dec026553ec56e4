"""What built-ins do with phases, loops and reports: chains, and plain references of them, without logitport's code.

A reference is a function of the history alone, because some engines show their processors nothing else. So each prompt
ends with `MARK`, which is nowhere else in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import EditProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport import EditRequest, RowEdits

# Ids below each engine's vocabulary size, and none that ends an output.
MARK, START, END, END_AGAIN = 39, 40, 41, 42
TAGS = {"thinking_start_ids": [START], "thinking_end_ids": [END, END_AGAIN]}
BUDGET, PENALTY = 9, 2.0
FEW, PUSH = [50, 51, 52], 90.0  # a model that can choose among few ids repeats itself
MIN_LENGTH, REPEATS = 6, 2
EVERY = 10


class Counting(EditProcessor):
    """Reports every tenth id."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        length = len(request.history.output_token_ids)
        if length % request.params["every"] == 0:
            edits.event("counted", length=length)


_THINKING = ("thinking_budget", {"thinking_budget": BUDGET, **TAGS})
_PUSHED = ("logit_bias", {"logit_bias": {str(token_id): PUSH for token_id in FEW}})
_LOOPS = {"repeats": REPEATS, "min_length": MIN_LENGTH, "plain_repeats": 0}
BEHAVIORS: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "phases": [_THINKING, ("frequency_penalty", {"frequency_penalty": PENALTY, "phase": "answer", "phase_tags": TAGS})],
    "loop guard": [_PUSHED, ("loop_guard", {"action": "deny_next", **_LOOPS})],
    "report": [_PUSHED, _THINKING, ("loop_guard", {"action": "report", **_LOOPS}), (Counting, {"every": EVERY})],
}


def prompts_of(random_prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the prompts with a mark; every second one opens a thinking block."""
    special = range(MARK, END_AGAIN + 1)
    plain = [[token_id for token_id in prompt if token_id not in special] for prompt in random_prompts]
    return [[*prompt, *([START] if n % 2 else []), MARK] for n, prompt in enumerate(plain)]


def output_of(history: Sequence[int]) -> list[int]:
    """Return the ids after the prompt."""
    return list(history[list(history).index(MARK) + 1 :])


def block_of(history: Sequence[int]) -> tuple[bool, list[int]]:
    """Return whether the history's end is thinking, and the ids of the thinking block or of the answer there."""
    thinking, block = False, list[int]()
    prompt_end = list(history).index(MARK)
    for at, token_id in enumerate(history):
        block.append(token_id)
        if token_id == START:
            thinking, block = True, []
        elif thinking and token_id == END_AGAIN and history[at - 1] == END and len(block) > 1:
            thinking, block = False, []
        elif at == prompt_end and not thinking:
            block = []
    return thinking, block


def cycle_of(output: Sequence[int]) -> tuple[int, int] | None:
    """Return the shortest period of a complete cycle at the end, and the cycle's begin; None without one."""
    for period in range(1, len(output)):
        begin = len(output) - period
        while begin > 0 and output[begin - 1] == output[begin - 1 + period]:
            begin -= 1
        if len(output) - begin >= max(REPEATS * period, MIN_LENGTH):
            return period, begin
    return None


def phases(history: Sequence[int], logits: Any) -> Any:
    """Apply the chain "phases", in place, to a row of logits: a torch tensor or a numpy array, float[vocab_size]."""
    thinking, block = block_of(history)
    if not thinking:
        for token_id in sorted(set(block)):
            logits[token_id] -= PENALTY * block.count(token_id)
    elif len(block) >= BUDGET:
        forced = END_AGAIN if block[-1] == END else END
        logits[:forced] = logits[forced + 1 :] = -float("inf")
    return logits


def report(history: Sequence[int], logits: Any) -> Any:
    """Apply the chain "report" in the same way: it has no processor of the answer."""
    logits[FEW] += PUSH
    return phases(history, logits) if block_of(history)[0] else logits


def loop_guard(history: Sequence[int], logits: Any) -> Any:
    """Apply the chain "loop guard" in the same way."""
    logits[FEW] += PUSH
    output = output_of(history)
    cycle = cycle_of(output)
    if cycle is not None:
        logits[output[-cycle[0]]] = -float("inf")
    return logits


def report_of(history: Sequence[int], chain: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the report of a request that has ended, as `Report.to_json` does.

    Args:
        history: its prompt and its output.
        chain: the chain "report", with the digest of `Counting`.
    """
    names = [name for name, _ in chain]
    output = output_of(history)
    start = len(history) - len(output)
    events = [
        {"processor": names[index], "name": name, "position": at, "values": values}
        for at in range(len(output))
        for index, name, values in _events(history[: start + at])
    ]
    return {
        "processors": [*({"name": name} for name in names[:-1]), {"name": names[-1], "digest": names[-1]}],
        "rows_applied": len(output),
        "rows_skipped": 0,
        "skipped": [],
        "error": "",
        "failed_at": None,
        "events": events,
        "events_left_out": 0,
    }


def _events(history: Sequence[int]) -> Iterator[tuple[int, str, dict[str, int]]]:
    """Yield the events at the history's end: the processor's index in the chain, the name, and the values."""
    thinking, block = block_of(history)
    output = output_of(history)
    cycle = cycle_of(output)
    if thinking and len(block) == BUDGET:
        yield 1, "budget_hit", {"at": BUDGET}
    if cycle is not None and len(output) == cycle[1] + max(REPEATS * cycle[0], MIN_LENGTH):
        yield 2, "loop_found", {"period": cycle[0], "begin": cycle[1]}
    if len(output) % EVERY == 0:
        yield 3, "counted", {"length": len(output)}
