"""Reads recordings of sessions, which `logitport.recording` writes; see docs/recording.md."""
