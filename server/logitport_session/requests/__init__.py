"""The requests of a session: their histories, processors, states and memory."""
