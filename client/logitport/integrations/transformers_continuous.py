"""The hook for transformers' continuous batching: public name of `integrations.transformers.continuous`."""

from logitport.integrations.transformers.continuous import RemoteLogitsProcessor

__all__ = ["RemoteLogitsProcessor"]
