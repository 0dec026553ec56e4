"""The search for requests on which a processor breaks a law of servers."""
