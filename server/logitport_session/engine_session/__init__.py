"""A session of an engine: its parts, its frames, and what its host learns of it."""
