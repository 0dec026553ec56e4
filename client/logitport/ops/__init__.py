"""What edits and built-ins run on."""

from logitport.ops.apply_edits import apply_edits

__all__ = ["apply_edits"]
