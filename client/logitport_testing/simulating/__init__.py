"""Runs a chain step by step in this process."""
