"""transformers' dialect."""
