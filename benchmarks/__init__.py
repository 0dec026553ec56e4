"""Measures logitport and its peers in one run. It asserts nothing; benchmarks/RESULTS.md explains the results."""
