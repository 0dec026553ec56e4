"""The decision whether shipped processors are contained on this machine; `serve` and `doctor` share it."""

from __future__ import annotations

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logitport_sandbox import users
from logitport_sandbox.layers import LAYER_NAMES, LAYERS
from logitport_sandbox.plan import NotContained, SandboxError
from logitport_sandbox.verification import probe_cache
from logitport_sandbox.verification.attempts import ATTEMPTS
from logitport_sandbox.verification.probe import ProbeResult, probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assessment:
    """The layers of this machine, and how each attempt ended inside a worker with the layers that are present.

    Attributes:
        missing: for each layer that this machine lacks, the reason and what it needs.
        waived: names of the layers that the operator does without.
        required: names of the layers that the operator insists on.
        results: one result for each attempt.
    """

    missing: Mapping[str, str]
    waived: frozenset[str]
    required: frozenset[str]
    results: tuple[ProbeResult, ...]

    @property
    def absent(self) -> frozenset[str]:
        """Names of the layers that workers run without."""
        return self.waived | self.missing.keys()

    @property
    def leaks(self) -> list[ProbeResult]:
        """The attempts that got through, although the layers that are not waived should stop them."""
        return [result for result in self._through if _stops(self._expected, result.what)]

    @property
    def accepted(self) -> list[ProbeResult]:
        """The attempts that got through because the operator waived the layers that stop them."""
        return [result for result in self._through if not _stops(self._expected, result.what)]

    @property
    def relies_on_layers(self) -> bool:
        """Whether present layers stop each attempt that must be stopped. If not, a setting of the machine may do so."""
        present = _applicable() - self.absent
        return all(_stops(present, attempt.what) for attempt in ATTEMPTS if _stops(self._expected, attempt.what))

    @property
    def _expected(self) -> frozenset[str]:
        return _applicable() - self.waived

    @property
    def _through(self) -> list[ProbeResult]:
        return [result for result in self.results if not result.stopped]

    def refusal(self) -> str | None:
        """Return why shipped processors must be refused here, and what to do; None if they may run."""
        lines = _lacking(self.missing, self.required)
        if leaks := self.leaks:
            lines += ["these attempts got through:", *(f"  {leak.what}: {leak.how}" for leak in leaks)]
            lines += self._remedies(leaks)
        return "\n".join(lines) if lines else None

    def _remedies(self, leaks: list[ProbeResult]) -> list[str]:
        """Return what would stop the attempts: the missing layers, or a report where all layers are present."""
        useful = frozenset[str]().union(*(layers for leak in leaks for layers in _stopped_by(leak.what)))
        lacking = [name for name in self.missing if name in useful - self.waived]
        remedies = []
        if "users" in useful and os.geteuid() == 0 and (reason := users.lacking()) is not None:
            remedies += [f"workers with users of their own would stop them: {reason}"]
        if lacking:
            remedies += [
                "these layers would stop them, and are missing:",
                *(f"  {name}: {self.missing[name]}" for name in lacking),
                f"install them, or accept these attempts with {' '.join(f'--layers {name}=off' for name in lacking)}",
            ]
        return remedies or ["the layers that should stop them are present; please report this"]

    def warnings(self) -> list[str]:
        """Return warnings for the operator where shipped processors may run."""
        warnings = [
            f"the sandbox has no layer {name}: {reason}; the other layers stop every attempt, with less depth"
            for name, reason in self.missing.items()
            if name not in self.waived
        ]
        if accepted := self.accepted:
            names = ", ".join(sorted(self.waived))
            warnings.append(f"without {names}, these attempts get through: {', '.join(one.what for one in accepted)}")
        return warnings


def assess(
    python: str = sys.executable,
    *,
    without: Iterable[str] = (),
    required: Iterable[str] = (),
    use_cache: bool = True,
) -> Assessment:
    """Find the layers of this machine, and make every attempt inside workers that have them.

    Earlier results for the same kernel, code, interpreter and layers are used instead, if shipped processors may run by
    them, and if layers stop each attempt. A refusal is always the result of new attempts.

    Args:
        python: interpreter of the workers.
        without: names of the layers to do without.
        required: names of the layers without which shipped processors are refused.
        use_cache: whether an earlier result may be used.

    Raises:
        NotContained: no worker could be started, and layers are missing.
        SandboxError: the interpreter cannot run workers, or no worker could be started.
    """
    waived, needed = frozenset(without), frozenset(required)
    missing = missing_layers()
    absent = waived | missing.keys()
    key = probe_cache.describe(python, _applicable() - absent)
    if use_cache and (kept := probe_cache.load(key)) is not None and _is_complete(kept):
        assessment = Assessment(missing, waived, needed, kept)
        if assessment.relies_on_layers and assessment.refusal() is None:
            return assessment
    results = _probe(python, absent, {name: missing[name] for name in missing if name not in waived})
    assessment = Assessment(missing, waived, needed, results)
    if assessment.relies_on_layers and assessment.refusal() is None:
        probe_cache.save(key, results)
    return assessment


def contain(pythons: Iterable[str], *, without: Iterable[str], required: Iterable[str]) -> frozenset[str]:
    """Return the names of the layers that workers of these interpreters run without, and log what is lacking.

    Raises:
        NotContained: shipped processors must be refused here; the message says why, and what to do.
        SandboxError: an interpreter cannot run workers, or no worker could be started.
    """
    absent: frozenset[str] = frozenset(without)
    warnings: dict[str, None] = {}  # in order, each once
    for python in pythons:
        assessment = assess(python, without=without, required=required)
        if (refusal := assessment.refusal()) is not None:
            raise NotContained(refusal)
        absent |= assessment.absent
        warnings |= dict.fromkeys(assessment.warnings())
    for warning in warnings:
        logger.warning("%s", warning)
    return absent


def missing_layers() -> dict[str, str]:
    """For each layer that this machine lacks, return the reason and what it needs."""
    with ThreadPoolExecutor(len(LAYERS)) as threads:  # two of them start a process
        reasons = threads.map(lambda layer: layer.missing(), LAYERS)
    return {layer.name: reason for layer, reason in zip(LAYERS, reasons, strict=True) if reason is not None}


def _probe(python: str, absent: frozenset[str], missing: Mapping[str, str]) -> tuple[ProbeResult, ...]:
    try:
        return tuple(probe(python, without=absent))
    except SandboxError as error:
        if not missing:
            raise
        raise NotContained("\n".join([str(error), *_lacking(missing, missing.keys())])) from error


def _is_complete(results: tuple[ProbeResult, ...]) -> bool:
    return [result.what for result in results] == [attempt.what for attempt in ATTEMPTS]


def _lacking(missing: Mapping[str, str], names: Iterable[str]) -> list[str]:
    found = [f"  {name}: {missing[name]}" for name in LAYER_NAMES if name in missing and name in frozenset(names)]
    return ["this machine lacks required layers:", *found] if found else []


def _applicable() -> frozenset[str]:
    """Return the names of all layers, and "users" where workers have users of their own."""
    return frozenset(LAYER_NAMES) | ({"users"} if users.lacking() is None else frozenset())


def _stops(layers: frozenset[str], what: str) -> bool:
    return any(enough <= layers for enough in _stopped_by(what))


def _stopped_by(what: str) -> tuple[frozenset[str], ...]:
    return next(attempt.stopped_by for attempt in ATTEMPTS if attempt.what == what)
