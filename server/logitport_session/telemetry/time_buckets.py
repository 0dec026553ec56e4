"""Upper bounds of the buckets of times, in seconds."""

from __future__ import annotations

# From a fast logits-free step to a batch of logits sent inline.
STEP_BOUNDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5)
# Fewer, because each processor has a series of each.
PROCESSOR_BOUNDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 2.5)
