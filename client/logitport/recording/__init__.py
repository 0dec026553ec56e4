"""Recordings: the histories, edits and sampled logits of an engine's requests, in a file; see docs/recording.md."""

from logitport.recording.options import RecordOptions

__all__ = ["RecordOptions"]
