"""Hooks for engines. Each module imports its engine; none is imported by `logitport` itself."""
