"""`loop_guard`: finds that the output cycles, and breaks the cycle."""

from logitport_builtins.loop_guard.processor import LoopGuard

__all__ = ["LoopGuard"]
