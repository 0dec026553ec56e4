"""An engine's session: frames, their transports, the requests it holds and the memory of its logits."""
