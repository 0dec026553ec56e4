"""Calls of processors in workers, from the dialect of a session to the queue of messages of a worker."""
