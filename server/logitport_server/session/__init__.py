"""An engine's persistent batch, and the steps that process its logits."""
