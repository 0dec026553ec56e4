"""Runs the chains of the page."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

import logitport_builtins
from logitport.errors import InvalidArgument, LogitportError
from logitport_builtins import BUILTINS
from logitport_play.watch import Watched
from logitport_testing import Stepper
from logitport_testing.runner import load_backend

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logitport_play.models import PlayModel
    from logitport_play.watched_files import Files
    from logitport_testing import Simulation

MAX_STEPS = 512
MAX_PROMPT_IDS = 4096
TOP_K = 8
# A request returns after this time; the page calls again, and shows the steps so far.
_BUDGET_SECONDS = 0.25
# Python reads at most 200 nested brackets in an exported test, and orjson writes 254.
_MAX_PARAMS_DEPTH = 64

_Id = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Step = Annotated[int, Meta(ge=0, le=MAX_STEPS)]


class ChosenProcessor(msgspec.Struct, forbid_unknown_fields=True):
    """A processor of a chain: a built-in's name or FILE.py:NAME, and its parameters."""

    processor: Annotated[str, Meta(max_length=300)]
    params: dict[str, Any] = {}

    def __post_init__(self) -> None:
        level: list[Any] = [self.params]
        for _ in range(_MAX_PARAMS_DEPTH):
            level = [inner for outer in level for inner in _elements(outer)]
        if level:
            raise ValueError(f"params are nested too deeply: use at most {_MAX_PARAMS_DEPTH} levels")


class RunSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Specification of a run, from the page. The same specification has the same result.

    Attributes:
        lane: which of the two chains of the page.
        model: its name.
        prompt: its text.
        seed: of the sampling.
        temperature: of the sampling; 0 chooses the best id.
        chain: the processors.
        steps: number of steps.
        forced: ids that the user has chosen, by step.
        since: the page needs the panes from this step on.
    """

    lane: Literal["a", "b"]
    model: str
    prompt: Annotated[str, Meta(max_length=40_000)]
    chain: Annotated[list[ChosenProcessor], Meta(max_length=16)]
    steps: _Step
    seed: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    forced: dict[_Step, _Id] = {}
    since: _Step = 0


@dataclass(frozen=True)
class RunResult:
    """The steps of a run.

    Attributes:
        simulation: the steps.
        ended: whether there can be no further step.
        since: the first step that is new to the page.
        new_steps: number of steps that were computed for this call.
        stopped: whether a processor did not return in the last step. There is no further step then.
    """

    simulation: Simulation
    ended: bool
    since: int
    new_steps: int
    stopped: bool = False


class Runs:
    """The present run of each lane. Thread-safe: one call runs at a time."""

    def __init__(self, models: Mapping[str, PlayModel], files: Files) -> None:
        self._models = models
        self._files = files
        self._lanes: dict[str, _Lane] = {}
        self._lock = Lock()
        # By the names of the models, so that a run finds its model's. Each is read when a processor uses it.
        self._tokenizers = {name: model.tokenizer_path for name, model in models.items()}
        logitport_builtins.add_tokenizers(self._tokenizers)

    def run(self, spec: RunSpec) -> RunResult:
        """Run to the number of steps, or until the time for one call is used up.

        Raises:
            InvalidArgument: the specification names what there is not, or the prompt cannot be used.
        """
        with self._lock:
            self._files.refresh()
            deadline = time.perf_counter() + _BUDGET_SECONDS
            chain = msgspec.json.encode(spec.chain)
            key = (spec.model, spec.prompt, spec.seed, spec.temperature, chain, self._files.version)
            lane, since = self._lanes.get(spec.lane), spec.since
            if lane is None or not lane.continues(key, spec):
                if lane is not None:
                    lane.close()
                    del self._lanes[spec.lane]
                lane = self._lanes[spec.lane] = _Lane(key, self._open(spec))
                since = 0
            new_steps = self._advance(lane, spec, deadline)
            ended = lane.stepper.ended is not None or lane.stopped
            return RunResult(lane.stepper.result(), ended, since, new_steps, lane.stopped)

    def model(self, name: str) -> PlayModel:
        """Return a model. Raises InvalidArgument if no model has this name."""
        try:
            return self._models[name]
        except KeyError:
            raise InvalidArgument(f"there is no model {name!r}; choose one of the list") from None

    def warm_up(self) -> None:
        """Import what the first run needs, which takes seconds."""
        with suppress(LogitportError), self._lock, load_backend().open_runner():
            pass

    def close(self) -> None:
        """End all runs."""
        with self._lock:
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()
            logitport_builtins.remove_tokenizers(self._tokenizers)
            self._tokenizers.clear()

    def _advance(self, lane: _Lane, spec: RunSpec, deadline: float) -> int:
        watched = Watched(partial(lane.advance, spec, deadline), self._files.paths)
        try:
            new_steps: int = watched.run()
        except BaseException:
            if watched.stopped:  # the lane may be in the middle of a step, or still in use
                del self._lanes[spec.lane]
            raise
        lane.stopped = lane.stopped or watched.stopped
        return new_steps

    def _open(self, spec: RunSpec) -> Stepper:
        model = self.model(spec.model)
        prompt = model.encode(spec.prompt)
        if len(prompt) > MAX_PROMPT_IDS:
            raise InvalidArgument(f"the prompt has {len(prompt)} ids; write one of at most {MAX_PROMPT_IDS}")
        chain = [
            (one.processor if one.processor in BUILTINS else self._files.find(one.processor), one.params)
            for one in spec.chain
        ]
        return Stepper(
            chain,
            model,
            prompt,
            temperature=spec.temperature,
            seed=spec.seed,
            top_k=TOP_K,
            tokenizer_id=spec.model,
            eos_token_ids=model.eos_token_ids,
            on_error="isolate",
            token_text=model.token_text,
        )


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class _Lane:
    """A run that can go on."""

    def __init__(self, key: tuple[Any, ...], stepper: Stepper) -> None:
        self.stepper = stepper
        self._key = key
        self._forced: dict[int, int] = {}
        self.stopped = False

    def continues(self, key: tuple[Any, ...], spec: RunSpec) -> bool:
        """Whether the run so far is the beginning of the specified one."""
        done = len(self.stepper.steps)
        given = {step: token_id for step, token_id in spec.forced.items() if step < done}
        return key == self._key and spec.steps >= done and given == self._forced

    def advance(self, spec: RunSpec, deadline: float) -> int:
        """Run to the number of steps, and at least one step. Returns the number of new steps."""
        first = len(self.stepper.steps)
        while len(self.stepper.steps) < spec.steps and self.stepper.ended is None and not self.stopped:
            index = len(self.stepper.steps)
            self.stepper.step(spec.forced.get(index))
            if index in spec.forced:
                self._forced[index] = spec.forced[index]
            if time.perf_counter() > deadline:
                break
        return len(self.stepper.steps) - first

    def close(self) -> None:
        self.stepper.close()
