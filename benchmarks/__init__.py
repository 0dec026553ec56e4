"""Peers and logitport side by side, in one run. It asserts nothing; docs/performance.md says how to read it."""
