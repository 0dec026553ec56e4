"""Memory that the server shares with an engine."""
