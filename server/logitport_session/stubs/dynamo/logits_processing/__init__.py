"""Stub of NVIDIA Dynamo's package of this name: its base class, without its processors."""

from .base import BaseLogitsProcessor

__all__ = ["BaseLogitsProcessor"]
