"""The public import path of `integrations.transformers.continuous`: the hook for transformers' continuous batching."""

from logitport.integrations.transformers.continuous import RemoteLogitsProcessor

__all__ = ["RemoteLogitsProcessor"]
