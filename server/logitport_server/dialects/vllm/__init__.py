"""vLLM's three dialects: `v1` (batches), `request` (single requests), `v2` (slots), on what `base` has for all."""
