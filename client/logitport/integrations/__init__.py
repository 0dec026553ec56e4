"""Hooks for inference engines. Each module imports its engine; importing `logitport` imports no hook."""
