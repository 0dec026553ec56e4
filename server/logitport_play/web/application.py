"""Functions that the page of chains calls."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from logitport_play.export import export_test
from logitport_play.forms import builtin_forms, form_of
from logitport_play.models import STORY
from logitport_play.runs import MAX_STEPS, RunSpec
from logitport_play.shown_examples import EXAMPLES, STEPS
from logitport_play.web.example_cards import example_card
from logitport_play.web.routes import application, read
from logitport_testing.view.charts import charts
from logitport_testing.view.panes import pane
from logitport_testing.view.tiles import step_tiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import ASGIApp

    from logitport_play.models import PlayModel
    from logitport_play.runs import RunResult, Runs
    from logitport_play.watched_files import Files
    from logitport_testing import StepRecord

_STARTING_CHAIN = ("no_repeat_ngram", "temperature")


class PlayApplication:
    """The application: models by name, processors of the user, and the runs of both.

    The page begins with the prompt, None for the model's own, and the seed.
    """

    def __init__(
        self, models: Mapping[str, PlayModel], files: Files, runs: Runs, prompt: str | None = None, seed: int = 0
    ) -> None:
        self._models = models
        self._files = files
        self._runs = runs
        self._prompt = prompt
        self._seed = seed
        self._builtins = builtin_forms()

    def guarded(self, token: str, port: int) -> ASGIApp:
        """Make the application behind its guard."""
        reading = {"state": self.state, "files": self.files, "examples": self.examples}
        functions = {**reading, "run": self.run, "export": self.export}
        return application(functions, "play.html", token, port)

    def state(self, _: bytes) -> dict[str, Any]:
        """List the choices of the page: models and processors."""
        self._files.refresh()
        own = [
            form_of(f"{file.name}:{name}", file.name, processor)
            for file in self._files
            for name, processor in file.processors.items()
        ]
        first = list({form.group: form for form in reversed(own)}.values())
        starting = first or [form for form in self._builtins if form.name in _STARTING_CHAIN]
        default = next(iter(self._models.values()))
        return {
            "models": [{"name": one.name, "prompt": one.prompt} for one in self._models.values()],
            "model": default.name,
            "prompt": default.prompt if self._prompt is None else self._prompt,
            "seed": self._seed,
            "example_model": STORY,
            "steps": STEPS,
            "max_steps": MAX_STEPS,
            "processors": [*own, *self._builtins],
            "chain": [{"processor": form.name, "params": form.params} for form in starting],
            **self.files(_),
        }

    def files(self, _: bytes) -> dict[str, Any]:
        """List the files of processors: when each was saved, and its error."""
        return self._files.to_json()

    def examples(self, _: bytes) -> dict[str, Any]:
        """Return the examples, which run at the first call; none if the page has files. Raises LogitportError."""
        return {"examples": [] if list(self._files) else self._examples}

    def run(self, body: bytes) -> dict[str, Any]:
        """Run the specified chain. Raises LogitportError or msgspec.DecodeError."""
        spec = read(body, RunSpec)
        return _run_to_json(self._runs.run(spec), spec.lane)

    def export(self, body: bytes) -> dict[str, Any]:
        """Write the test. Raises the errors of `run`."""
        return {"code": export_test(read(body, RunSpec), self._runs, self._files)}

    @cached_property
    def _examples(self) -> list[dict[str, Any]]:
        return [example_card(example) for example in EXAMPLES]


def _run_to_json(result: RunResult, lane: str) -> dict[str, Any]:
    """Describe a run with fragments of HTML. The ids of their elements begin with the lane."""
    simulation, since = result.simulation, result.since
    steps, texts = simulation.steps, simulation.texts
    history = [None, *simulation.prompt_token_ids, *simulation.output_token_ids]
    offset = len(simulation.prompt_token_ids)
    panes = [pane(step, texts, after=history[offset + step.index], buttons=True) for step in steps[since:]]
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
        "errors": _errors(steps),
        "summary": _summary(result),
    }


def _errors(steps: Sequence[StepRecord]) -> dict[str, str]:
    """The last error of each processor, by its place, and the steps in which it failed."""
    failed: dict[int, list[tuple[int, str]]] = {}
    for step in steps:
        for record in step.processors:
            if record.error:
                failed.setdefault(record.place, []).append((step.index + 1, record.error))
    errors = {}
    for place, found in failed.items():
        number, error = found[-1]
        some = f"failed in {len(found)} of {len(steps)} steps, the last time in step {number}: "
        errors[str(place)] = error if len(found) == len(steps) else some + error
    return errors


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
