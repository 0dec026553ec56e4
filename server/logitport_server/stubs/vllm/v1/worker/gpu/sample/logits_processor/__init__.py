"""Stands for vLLM's package of this name: the contract of processors for the revised model runner."""

from .interface import LogitsContext, LogitsProcessor, LogitsProcRequestState

__all__ = ["LogitsContext", "LogitsProcRequestState", "LogitsProcessor"]
