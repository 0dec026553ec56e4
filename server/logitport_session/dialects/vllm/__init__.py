"""vLLM's dialects: `v1` (batches), `request_dialect` (single requests), `v2` (slots); `base` has what they share."""
