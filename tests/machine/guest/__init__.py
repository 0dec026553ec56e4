"""Tests that run in a machine, and what it starts them with."""
