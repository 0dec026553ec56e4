"""Which processors exist, and which may be loaded."""
