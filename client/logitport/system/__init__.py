"""Threads, sockets, CUDA and the environment of a process: what knows nothing of processors."""
