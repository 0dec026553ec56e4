"""Virtual machines with systemd, in which the server runs as a service: `make machine`."""
