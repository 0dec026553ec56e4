"""Phases of a request's output: thinking, answer, tool call. They are found from token ids, in this package alone."""

from logitport.phases.chat_template import tags_of_tokenizer
from logitport.phases.phase_params import PhaseChoice, known_tags, read_phase, tags_for
from logitport.phases.phase_presets import PHASE_PRESETS, THINKING_PRESETS
from logitport.phases.phase_tags import PHASES, THINKING, PhaseTag, PhaseTags
from logitport.phases.phase_tracker import PhaseTracker, tracker_fields, tracker_of

__all__ = [
    "PHASES",
    "PHASE_PRESETS",
    "THINKING",
    "THINKING_PRESETS",
    "PhaseChoice",
    "PhaseTag",
    "PhaseTags",
    "PhaseTracker",
    "known_tags",
    "read_phase",
    "tags_for",
    "tags_of_tokenizer",
    "tracker_fields",
    "tracker_of",
]
