"""Tests of processors, in the test's own process: `simulate` shows what a chain does, `check` searches for defects.

The extra `testing` installs what it needs, and the extra `server` the code that runs the chains.
"""

from typing import TYPE_CHECKING

from logitport.lazy import names_of
from logitport_testing.records import Candidates, ProcessorRecord, StepRecord, Summary
from logitport_testing.result import Simulation
from logitport_testing.simulation import simulate
from logitport_testing.stepper import Stepper
from logitport_testing.story_model import StoryModel
from logitport_testing.toy_model import ToyModel

if TYPE_CHECKING:
    from logitport_testing.checking import LAWS, check
    from logitport_testing.laws import LawBroken

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


# They need hypothesis, which `simulate` does not.
__getattr__ = names_of(__name__, {"logitport_testing.checking": "LAWS check", "logitport_testing.laws": "LawBroken"})
