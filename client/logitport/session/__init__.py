"""An engine's session: its frames, transports, requests and logits memory."""
