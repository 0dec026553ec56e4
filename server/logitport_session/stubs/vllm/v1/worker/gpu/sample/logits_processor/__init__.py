"""Stub of vLLM's package of this name: the interface of processors for the revised model runner."""

from .interface import LogitsContext, LogitsProcessor, LogitsProcRequestState

__all__ = ["LogitsContext", "LogitsProcRequestState", "LogitsProcessor"]
