"""Transports of frames and calls: gRPC, the local socket, and the addresses they listen on."""
