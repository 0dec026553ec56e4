"""Another server for an engine's session: detection of a stopped one, the choice, and what is repeated there."""
