"""The effect of each processor in a step, from the rows of logits before and after it."""
