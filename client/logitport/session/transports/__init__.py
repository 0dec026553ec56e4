"""Transports of a session's frames: one module per transport, all subclasses of `Transport`."""
