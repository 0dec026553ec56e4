"""Pages over HTTP: health, metrics, and a server that bounds its clients."""
