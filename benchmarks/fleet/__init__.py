"""What a fleet adds: balancers, the replay of a lost server's requests, and more servers."""
