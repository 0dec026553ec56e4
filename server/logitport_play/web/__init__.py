"""The web server of `logitport play` on this machine: its routes, its guard, and the pages that it serves."""
