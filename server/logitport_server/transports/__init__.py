"""Frames and calls in and out: gRPC, the local socket, and the addresses they listen on."""
