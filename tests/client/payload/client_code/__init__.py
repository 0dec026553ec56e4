"""A client's own package, which no server has."""
