"""Recordings: the histories, edits and sampled logits of an engine's requests, in a file; see docs/recording.md."""
