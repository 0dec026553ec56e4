"""Measurements of a fleet: balancers, the replay of a lost server's requests, and more servers."""
