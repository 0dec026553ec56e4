"""The hook for transformers' `generate`. Continuous batching has `logitport.integrations.transformers.continuous`."""

from logitport.integrations.transformers.generate import RemoteLogitsProcessor

__all__ = ["RemoteLogitsProcessor"]
