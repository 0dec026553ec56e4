"""`dry`: penalizes ids that would continue a repetition."""

from logitport_builtins.dry.processor import Dry

__all__ = ["Dry"]
