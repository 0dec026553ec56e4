"""vLLM's three dialects: `v1` (batches), `request` (single requests), `v2` (slots); `base` has what they share."""
