"""Functions that the page of chains calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_server.play.export import export_test
from logitport_server.play.forms import builtin_forms, form_of
from logitport_server.play.fragments import run_to_json
from logitport_server.play.runs import MAX_STEPS, RunSpec
from logitport_server.play.web import application, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

    from logitport_server.play.files import Files
    from logitport_server.play.models import PlayModel
    from logitport_server.play.runs import Runs

_STARTING_CHAIN = ("no_repeat_ngram", "temperature")


class Play:
    """The application.

    Args:
        models: by name.
        files: processors of the user.
        runs: runs chains of both.
        prompt: the prompt to begin with; None for that of the model.
        seed: the seed to begin with.
    """

    def __init__(
        self, models: Mapping[str, PlayModel], files: Files, runs: Runs, prompt: str | None = None, seed: int = 0
    ) -> None:
        self._models = models
        self._files = files
        self._runs = runs
        self._prompt = prompt
        self._seed = seed
        self._builtins = [form.to_json() for form in builtin_forms()]

    def guarded(self, token: str, port: int) -> ASGIApp:
        """Make the application behind its guard."""
        functions = {"state": self.state, "files": self.files, "run": self.run, "export": self.export}
        return application(functions, "index.html", token, port)

    def state(self, _: bytes) -> dict[str, Any]:
        """List the choices of the page: models and processors."""
        self._files.refresh()
        own = [
            form_of(f"{file.name}:{name}", file.name, processor).to_json()
            for file in self._files
            for name, processor in file.processors.items()
        ]
        first = list({form["group"]: form for form in reversed(own)}.values())
        starting = first or [form for form in self._builtins if form["name"] in _STARTING_CHAIN]
        default = next(iter(self._models.values()))
        return {
            "models": [{"name": one.name, "prompt": one.prompt} for one in self._models.values()],
            "model": default.name,
            "prompt": default.prompt if self._prompt is None else self._prompt,
            "seed": self._seed,
            "max_steps": MAX_STEPS,
            "processors": [*own, *self._builtins],
            "chain": [{"processor": form["name"], "params": form["params"]} for form in starting],
            **self.files(_),
        }

    def files(self, _: bytes) -> dict[str, Any]:
        """List the files of processors: when each was saved, and its error."""
        return self._files.to_json()

    def run(self, body: bytes) -> dict[str, Any]:
        """Run the specified chain. Raises LogitportError or msgspec.DecodeError."""
        spec = read(body, RunSpec)
        return run_to_json(self._runs.run(spec), spec.lane)

    def export(self, body: bytes) -> dict[str, Any]:
        """Write the test. Raises as `run`."""
        return {"code": export_test(read(body, RunSpec), self._runs, self._files)}
