"""The steps of an engine's session: arguments, frame, reply, programs and result."""
