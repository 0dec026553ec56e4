"""Errors of the configuration."""

from __future__ import annotations


class StartupError(Exception):
    """The configuration does not work on this machine. The message says what to change."""


class UsageError(StartupError):
    """A command was called in a wrong way, or its configuration file is invalid. The command ends with status 2."""
