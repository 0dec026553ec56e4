"""The version of the distribution."""

from importlib.metadata import version

VERSION = version("logitport")
