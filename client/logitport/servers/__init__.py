"""The servers of a client: their addresses, connections to them, and the choice among several."""
