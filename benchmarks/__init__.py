"""Measures logitport and its peers in one run. It asserts nothing; docs/performance.md explains the results."""
