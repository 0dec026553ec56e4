"""Reads recordings; see docs/recording.md."""
