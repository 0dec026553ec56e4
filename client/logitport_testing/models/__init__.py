"""Models of tests: a function of the ids, a small one with words, and those of users."""
