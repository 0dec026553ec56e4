"""Tests of processors, in the test's own process: `simulate` shows what a chain does, `check` searches for defects.

The extra `testing` installs what it needs, and the extra `server` the code that runs the chains.
"""

from typing import TYPE_CHECKING

from logitport.lazy import names_of
from logitport_testing.models.story_model import StoryModel
from logitport_testing.models.toy_model import ToyModel
from logitport_testing.simulating.result import Simulation
from logitport_testing.simulating.simulation import simulate
from logitport_testing.simulating.stepper import Stepper
from logitport_testing.step_records.records import Candidates, ProcessorRecord, StepRecord, Summary

if TYPE_CHECKING:
    from logitport_testing.laws.checking import LAWS, check
    from logitport_testing.laws.processor_laws import LawBroken

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
__getattr__ = names_of(
    __name__, {"logitport_testing.laws.checking": "LAWS check", "logitport_testing.laws.processor_laws": "LawBroken"}
)
