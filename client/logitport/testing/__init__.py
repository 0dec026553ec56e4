"""Tests of processors, in the test's own process: `simulate` shows what a chain does, `check` searches for defects.

The extra `testing` installs what it needs, and the extra `server` the code that runs the chains.
"""

import importlib
from typing import TYPE_CHECKING

from logitport.errors import LawBroken
from logitport.testing.records import Candidates, ProcessorRecord, StepRecord, Summary
from logitport.testing.result import Simulation
from logitport.testing.simulation import simulate
from logitport.testing.stepper import Stepper
from logitport.testing.story_model import StoryModel
from logitport.testing.toy_model import ToyModel

if TYPE_CHECKING:
    from logitport.testing.checking import LAWS, check

__all__ = [
    "simulate",
    "check",
    "LAWS",
    "LawBroken",
    "Stepper",
    "ToyModel",
    "StoryModel",
    "Simulation",
    "StepRecord",
    "ProcessorRecord",
    "Summary",
    "Candidates",
]


def __getattr__(name: str) -> object:
    if name in ("check", "LAWS"):  # hypothesis, which `simulate` does not need
        return getattr(importlib.import_module("logitport.testing.checking"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
