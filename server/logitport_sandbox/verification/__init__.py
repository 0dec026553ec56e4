"""Decides whether this machine contains workers, by attempts from inside real ones."""
