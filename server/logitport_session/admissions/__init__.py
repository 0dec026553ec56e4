"""The admission of requests: at once, or in the background."""
