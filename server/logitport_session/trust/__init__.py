"""Callers of a session, trust domains of code, and the interface to isolated processes."""
