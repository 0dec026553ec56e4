"""Recordings: the histories, edits and sampled logits of an engine's requests, in a file; see docs/recording.md.

record_options, events, members   what is recorded, and the format of the file
writing                           a session that is recorded, and the thread that writes
reading                           the events of a file, checked: it may be damaged, or made by anyone
"""

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of
from logitport_recording.record_options import RecordOptions

if TYPE_CHECKING:
    from logitport_recording.reading.reader import read_recording

__all__ = ["RecordOptions", "read_recording"]

# An engine that records does not read.
__getattr__ = names_of(__name__, {"logitport_recording.reading.reader": "read_recording"})
