"""Logits that the server processes: memory that is shared with it, and the transfer of rows."""
