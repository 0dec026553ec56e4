"""A persistent batch and its step."""
