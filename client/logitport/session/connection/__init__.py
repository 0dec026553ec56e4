"""The connection of an engine's session: its frames and their replies, over any transport."""
