"""Tests of processors, in the test's own process: `simulate` shows what a chain does, `check` searches for defects.

`replay` runs the requests of a recording with other processors. The extra `testing` installs what this package needs,
and the extra `server` the code that runs the chains.
"""

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of

if TYPE_CHECKING:
    from logitport_recording.reading.reader import read_recording
    from logitport_testing.laws.checking import LAWS, check
    from logitport_testing.laws.processor_laws import LawBroken
    from logitport_testing.models.story_model import StoryModel
    from logitport_testing.models.toy_model import ToyModel
    from logitport_testing.replaying.replacement import Replacement
    from logitport_testing.replaying.replay import replay
    from logitport_testing.simulating.result import Simulation
    from logitport_testing.simulating.simulation import simulate
    from logitport_testing.simulating.stepper import Stepper
    from logitport_testing.step_records.step_record import Candidates, ProcessorRecord, StepRecord, Summary

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
    "read_recording",
    "Replacement",
    "replay",
]

# pytest imports this package in each run, and `simulate` does not need hypothesis.
__getattr__ = names_of(
    __name__,
    {
        "logitport_testing.laws.checking": "LAWS check",
        "logitport_testing.laws.processor_laws": "LawBroken",
        "logitport_testing.models.story_model": "StoryModel",
        "logitport_testing.models.toy_model": "ToyModel",
        "logitport_recording.reading.reader": "read_recording",
        "logitport_testing.replaying.replacement": "Replacement",
        "logitport_testing.replaying.replay": "replay",
        "logitport_testing.simulating.result": "Simulation",
        "logitport_testing.simulating.simulation": "simulate",
        "logitport_testing.simulating.stepper": "Stepper",
        "logitport_testing.step_records.step_record": "Candidates ProcessorRecord StepRecord Summary",
    },
)
