"""Writes a recording: the recorded session, its steps as events, and the thread that appends them to a file."""
