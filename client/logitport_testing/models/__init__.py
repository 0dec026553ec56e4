"""Models of tests: a function of the ids, a small one with words, and users' models."""
