"""A run as fragments of HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.testing.view.charts import charts
from logitport.testing.view.panes import pane
from logitport.testing.view.tiles import step_tiles

if TYPE_CHECKING:
    from logitport_server.play.runs import RunResult


def run_to_json(result: RunResult, lane: str) -> dict[str, Any]:
    """Convert a run to JSON data.

    Args:
        result: the run.
        lane: its lane, for the ids of elements.
    """
    simulation, since = result.simulation, result.since
    steps, texts = simulation.steps, simulation.texts
    history = [None, *simulation.prompt_token_ids, *simulation.output_token_ids]
    offset = len(simulation.prompt_token_ids)
    panes = [pane(step, texts, after=history[offset + step.index], buttons=True) for step in steps[since:]]
    last = steps[-1] if steps else None
    return {
        "since": since,
        "steps": len(steps),
        "new_steps": result.new_steps,
        "ended": simulation.ended if result.ended else "",
        "ended_because": _ended_because(result),
        "tokens": [step.token_id for step in steps],
        "tiles": step_tiles(lane, simulation.prompt_token_ids, steps, texts, current=len(steps) - 1),
        "charts": charts(steps, [name for name, _ in simulation.chain]),
        "panes": panes,
        "errors": {} if last is None else {str(one.place): one.error for one in last.processors if one.error},
        "failed_steps": [step.index for step in steps if any(record.error for record in step.processors)],
        "summary": _summary(result),
        "milliseconds": result.milliseconds,
    }


def _ended_because(result: RunResult) -> str:
    if result.stopped:
        return f"step {len(result.simulation.steps)} was given up, because a processor did not return"
    return result.simulation.ended_because if result.ended else ""


def _summary(result: RunResult) -> dict[str, float]:
    steps = result.simulation.steps
    count = max(1, len(steps))
    return {
        "moved": sum(step.moved for step in steps) / count,
        "before": sum(step.raw.entropy for step in steps) / count,
        "after": sum(step.final.entropy for step in steps) / count,
    }
