"""The requests of an engine's session: admission, removal, and sending them again to another server."""
