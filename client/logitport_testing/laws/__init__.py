"""The search for requests that make a processor break a law of servers."""
