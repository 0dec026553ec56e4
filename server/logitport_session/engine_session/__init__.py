"""A session of an engine: its parts, its frames, and what its process observes of it."""
